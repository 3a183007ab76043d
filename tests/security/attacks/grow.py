"""Changes files while somebody reads them: grows, cuts, replaces, removes; until it is killed."""

from __future__ import annotations

import os
import shutil
import sys

TOP = "/workspace/growing"


def main() -> None:
    os.makedirs(TOP, exist_ok=True)
    print("ready", flush=True)
    sys.stdout.close()
    step = 0
    while True:
        step += 1
        with open(f"{TOP}/grows", "ab") as file:
            file.write(b"g" * 65536)
        with open(f"{TOP}/shrinks", "wb") as file:
            file.write(b"s" * (1 << 20))
        os.truncate(f"{TOP}/shrinks", step % 7)
        with open(f"{TOP}/comes", "wb") as file:
            file.write(b"c" * 1000)
        os.makedirs(f"{TOP}/folder/inner", exist_ok=True)
        with open(f"{TOP}/folder/inner/file", "wb") as file:
            file.write(b"f" * step)
        os.unlink(f"{TOP}/comes")
        shutil.rmtree(f"{TOP}/folder")
        os.symlink("/etc/passwd", f"{TOP}/folder")
        os.unlink(f"{TOP}/folder")
        if step % 64 == 0:
            os.truncate(f"{TOP}/grows", 0)


if __name__ == "__main__":
    main()
