"""The guest's kernel, root file system and initial memory disk, made from Debian packages.

Packages come from wherever this machine's apt gets them and are unpacked, never installed. What was
made is kept below /var/tmp, named after a digest of all that it was made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.guest import newc
from tools import system_packages
from tools.bootstrap import ROOT, locked, uv_pip

T = TypeVar("T")

PLACES = Path("/var/tmp")
NEEDED_PROGRAMS = ("apt-get", "chroot", "dpkg-deb", "mke2fs", "qemu-system-x86_64", "tar")
UNUSED_SECONDS = 14 * 24 * 3600

KERNEL = "linux-image-cloud-amd64"
PACKAGES = """bash busybox-static coreutils dash findutils grep kmod libc-bin libseccomp2 mawk
    libstdc++6 mount procps python3 sed tar usr-is-merged util-linux""".split()
# Of requirements.lock everything but what checks, builds and installs.
LEFT_OUT = """ast-serialize grimp hatchling import-linter librt mypy mypy-extensions pathspec prek
    ruff trove-classifiers uv""".split()
SPARE_MIB = 512
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BLOCK_DRIVERS = ("virtio_pci", "virtio_blk")
# Where the guest mounts and writes, and where the links lead that Debian has in its root.
FOLDERS = "dev home opt proc root run sys tmp usr/bin usr/lib usr/lib64 usr/sbin var/tmp".split()
MERGED = ("bin", "lib", "lib64", "sbin")
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/home/guest:/bin/sh\n",
    "etc/group": "root:x:0:\nguest:x:1000:\n",
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}


@dataclass(frozen=True)
class GuestImage:
    """The files from which a guest boots; none of them is ever written to."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def memory_disk(self) -> Path:
        return self.folder / "initrd"

    @property
    def root(self) -> Path:
        return self.folder / "root.ext4"


def why_not() -> str | None:
    """Return why this machine cannot make or boot a guest, if so."""
    if platform.machine() != "x86_64":
        return f"the guest is an x86-64 machine, this one is {platform.machine()}"
    missing = [name for name in NEEDED_PROGRAMS if not find_program(name)]
    if missing:
        return f"missing programs: {', '.join(missing)}"
    system = platform.freedesktop_os_release()["ID"]
    return None if system == "debian" else f"guests are made of Debian's packages, not {system}'s"


def find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def ready_image() -> GuestImage:
    """Return the image that belongs to this checkout, made first if it is not there yet."""
    place = PLACES / f"atoll-guest-{digest()}"
    with only_one_at_a_time(place):
        if not (place / "image").is_dir():
            remove_unused(keep=place)
            for leftover in place.iterdir():
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(dir=place) as work:
                make_image(Path(work))
                (Path(work) / "image").rename(place / "image")
        os.utime(place)
    return GuestImage(place / "image")


def digest() -> str:
    """Return a digest of all that the image is made from, short enough for a name."""
    release = platform.freedesktop_os_release()
    here = Path(__file__).parent
    sources = [path.read_text() for path in (here / "image.py", here / "newc.py")]
    sources += [path.read_text() for path in (here / "memory_disk_init", here / "init")]
    whole = "\0".join([*sources, pins(), release.get("VERSION_CODENAME", "")])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def pins() -> str:
    """Return the part of `requirements.lock` that the guest gets."""
    names = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return "".join(locked(name) for name in names if name not in LEFT_OUT)


@contextmanager
def only_one_at_a_time(place: Path) -> Iterator[None]:
    """Hold a lock on root's own folder at a place where everybody may write."""
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
            raise RuntimeError(f"{place} belongs to somebody else; remove it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_unused(keep: Path) -> None:
    """Remove the images of earlier checkouts that no run has used for long."""
    for place in PLACES.glob("atoll-guest-*"):
        found = place.lstat()
        old = time.time() - found.st_mtime > UNUSED_SECONDS
        if place != keep and old and found.st_uid == 0 and stat.S_ISDIR(found.st_mode):
            shutil.rmtree(place, ignore_errors=True)


# --- making it -----------------------------------------------------------------------------------


def make_image(work: Path) -> None:
    """Make the image in `work/image`."""
    image, root, packages = work / "image", work / "root", work / "packages"
    for folder in (image, root, packages / "partial"):
        folder.mkdir(parents=True)
    download(packages)
    make_folders(root)
    for package in sorted(packages.glob("*.deb")):
        unpack(package, root)
    install_python_packages(root)
    for name, text in FILES.items():
        (root / name).write_text(text)
    shutil.copy(Path(__file__).parent / "init", root / "usr/sbin/guest-init")
    release = only(root.glob("usr/lib/modules/*")).name
    only(root.glob("boot/vmlinuz-*")).rename(image / "vmlinuz")
    prepare(root, release)
    (image / "initrd").write_bytes(memory_disk(root, release))
    make_file_system(root, image / "root.ext4")


def download(folder: Path) -> None:
    """Fetch the packages and all they depend on, as if nothing were installed."""
    nothing = folder / "status"
    nothing.touch()
    everything = [f"Dir::State::status={nothing}", f"Dir::Cache::archives={folder}"]
    everything += ["APT::Install-Recommends=0", "APT::Sandbox::User=root"]
    options = [word for option in everything for word in ("-o", option)]

    def fetch() -> None:
        system_packages.apt_get(*options, "--yes", "--download-only", "install", *PACKAGES)
        kernel = kernel_package()
        run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", kernel], cwd=folder)

    try:
        fetch()
    except (system_packages.MissingPackages, RuntimeError):
        # The lists of this machine may be older than what the archive still has.
        system_packages.apt_get("update")
        fetch()


def kernel_package() -> str:
    """Return the package that holds the kernel; the one we name only depends on the newest."""
    listing = run(["apt-cache", "depends", "--important", KERNEL])
    words = [line.split() for line in listing.splitlines()]
    return only(word[1] for word in words if word[0] == "Depends:")


def make_folders(root: Path) -> None:
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")


def unpack(package: Path, root: Path) -> None:
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    with files:
        # Packages still name /bin and /lib, which are links by now.
        run(["tar", "--keep-directory-symlink", "-x", "-C", root], stdin=files.stdout)
    if files.returncode != 0:
        raise RuntimeError(f"{package.name} cannot be unpacked")


def install_python_packages(root: Path) -> None:
    version = only(root.glob("usr/lib/python3.*")).name.removeprefix("python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(pins())
        pinned.flush()
        command = [*uv_pip("install"), "--quiet", "--require-hashes", "--no-deps"]
        command += ["--python-version", version, "--target", f"{root}/opt/site-packages"]
        run([*command, "-r", pinned.name], cwd=ROOT)


def prepare(root: Path, release: str) -> None:
    """Do what packages do when they are installed, as far as a guest needs it."""
    (root / "usr/sbin/guest-init").chmod(0o755)
    awk = root / "usr/bin/awk"
    awk.unlink(missing_ok=True)
    awk.symlink_to("mawk")
    for line in (
        "ldconfig",
        f"depmod {release}",
        # Emulated, the guest would spend most of its time compiling what it imports.
        "python3 -m compileall -qq /usr/lib/python3* /opt/site-packages || true",
    ):
        run([find_program("chroot") or "chroot", root, "/bin/sh", "-c", f"PATH={PATH}; {line}"])


def memory_disk(root: Path, release: str) -> bytes:
    """Return the archive with what it takes to reach the root file system."""
    entries = [
        newc.Entry("init", 0o100755, (Path(__file__).parent / "memory_disk_init").read_bytes()),
        newc.Entry("busybox", 0o100755, (root / "usr/bin/busybox").read_bytes()),
        newc.Entry("modules", 0o040755),
    ]
    for number, path in enumerate(block_modules(root / "usr/lib/modules" / release)):
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        entries.append(newc.Entry(f"modules/{number:02}", 0o100644, content))
    return newc.archive(entries)


def block_modules(folder: Path) -> list[Path]:
    """Return the modules that a disk needs, each after those it depends on."""
    lines = (folder / "modules.dep").read_text().splitlines()
    needs = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    found: list[str] = []
    for driver in BLOCK_DRIVERS:
        for path in (path for path in needs if Path(path).name.partition(".")[0] == driver):
            # Those that depend on others come first there.
            found += [name for name in (*reversed(needs[path]), path) if name not in found]
    return [folder / name for name in found]


def make_file_system(root: Path, to: Path) -> None:
    used = int(run(["du", "--summarize", "--block-size=1M", root]).split()[0])
    with to.open("wb") as file:
        file.truncate((used * 5 // 4 + SPARE_MIB) << 20)
    options = "-q -t ext4 -O ^has_journal -b 4096 -m 0".split()
    run([find_program("mke2fs") or "mke2fs", *options, "-d", root, to])


def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a program to its end and return what it wrote."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return str(done.stdout)


def only(found: Iterable[T]) -> T:
    """Return the one thing there is to find."""
    (thing,) = found
    return thing
