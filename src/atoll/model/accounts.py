"""The users that programs in a sandbox find: files of /etc, the same for every engine that writes its own."""

from __future__ import annotations

SANDBOX_ID = 65532
SANDBOX_USER = "sandbox"
_ACCOUNT = "sandbox:x:65532:65532:sandbox:/home/sandbox:/bin/bash"
_GROUP = "sandbox:x:65532:"

PASSWD = f"""root:x:0:0:root:/root:/bin/sh
{_ACCOUNT}
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = f"""root:x:0:
tty:x:5:
{_GROUP}
nogroup:x:65534:
"""


def with_account(passwd: str, shell: str) -> str:
    """Return somebody else's /etc/passwd with the sandbox's user in it, first of all that have its name or number."""
    account = _ACCOUNT.replace("/bin/bash", shell)
    return _with_line(passwd, account)


def with_group(group: str) -> str:
    """Return somebody else's /etc/group with the sandbox's group in it."""
    return _with_line(group, _GROUP)


def _with_line(text: str, line: str) -> str:
    others = (each for each in text.splitlines() if not _is_ours(each.split(":")))
    return "".join(f"{each}\n" for each in (*others, line))


def _is_ours(fields: list[str]) -> bool:
    return fields[0] == SANDBOX_USER or (len(fields) > 2 and fields[2] == str(SANDBOX_ID))
