"""What is kept of a sandbox for the next program that takes it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.engines.namespaces.lasting_keeper import Kept, LastingKeeper
from atoll.engines.namespaces.plumbing import Plumbing
from atoll.errors import Unavailable
from atoll.model.process import EndReason, ProcessEnd

_NONE = "-"


class Shelf:
    """The part of a keeper that belongs to one sandbox or process; without a keeper that lasts nothing is kept."""

    def __init__(self, keeper: LastingKeeper | None, prefix: str) -> None:
        self._keeper = keeper
        self._prefix = prefix

    @property
    def lasts(self) -> bool:
        """Whether anything is kept."""
        return self._keeper is not None

    @property
    def is_gone(self) -> bool:
        """Whether a keeper that should last was killed."""
        return self._keeper is not None and self._keeper.is_gone

    def below(self, name: str) -> Shelf:
        """Return the part below a name."""
        return Shelf(self._keeper, f"{self._prefix}/{name}")

    def keep(self, slot: str, fds: Sequence[int] = (), note: str = "") -> None:
        """Have descriptors and a note kept, in place of what was."""
        if self._keeper is None:
            return
        try:
            self._keeper.keep(f"{self._prefix}/{slot}", fds, note)
        except Unavailable:
            # With its keeper goes the sandbox itself, which is noticed elsewhere.
            if not self._keeper.is_gone:
                raise

    def keep_init(self, sandbox: InitNote, fds: Sequence[int], kernel: Plumbing | None) -> None:
        """Have a sandbox's init kept, and the kernel that is made with it: one message for both."""
        kernel_fds, kinds = ((), "") if kernel is None else kernel.to_keep()
        self.keep("init", [*fds, *kernel_fds], f"{sandbox.host_id} {sandbox.jail_pid} {kinds}")

    def forget(self, slot: str) -> None:
        """Let go of a slot."""
        if self._keeper is not None:
            self._keeper.forget(f"{self._prefix}/{slot}")

    def clear(self) -> None:
        """Let go of everything."""
        self.forget("")


@dataclass(frozen=True, slots=True)
class InitNote:
    """What has to be known of a sandbox beside its descriptors."""

    host_id: int
    jail_pid: int


def parse_init_note(note: str) -> tuple[InitNote, str]:
    """Return the note of an init, and that of its kernel; zeros for what no engine of ours has noted."""
    try:
        host_id, jail_pid, *kinds = note.split()
        return InitNote(int(host_id), int(jail_pid)), " ".join(kinds)
    except ValueError:
        return InitNote(0, 0), ""


class Leftover:
    """What an earlier program has kept of one sandbox; whoever takes something of it owns its descriptors."""

    def __init__(self, entries: Mapping[str, Kept] | None = None) -> None:
        self._entries = dict(entries or {})

    def take(self, slot: str) -> Kept | None:
        """Return what was kept in a slot, once; None if there is nothing, or not all of it."""
        kept = self._entries.pop(slot, None)
        if kept is not None and not kept.is_whole:
            kept.close()
            return None
        return kept

    def put(self, slot: str, kept: Kept) -> None:
        """Put something into a slot."""
        self._entries[slot] = kept

    def look(self, slot: str) -> Kept | None:
        """Return what was kept in a slot, and leave it there."""
        return self._entries.get(slot)

    def items(self) -> Sequence[tuple[str, Kept]]:
        """Return everything, and leave it there."""
        return list(self._entries.items())

    def take_all(self, prefix: str) -> Sequence[Kept]:
        """Return what was kept in all slots below a name, once."""
        slots = [slot for slot in self._entries if slot.startswith(f"{prefix}/")]
        return [self._entries.pop(slot) for slot in slots]

    def close(self) -> None:
        """Let go of what nobody has taken."""
        while self._entries:
            self._entries.popitem()[1].close()


def sort_by_group(kept: Mapping[str, Kept]) -> dict[str, Leftover]:
    """Return what was kept, by the first part of its name."""
    groups: dict[str, dict[str, Kept]] = {}
    for name, each in kept.items():
        group, _, slot = name.partition("/")
        groups.setdefault(group, {})[slot] = each
    return {group: Leftover(entries) for group, entries in groups.items()}


def end_note(end: ProcessEnd) -> str:
    """Return the end of a process as a note."""
    code, signal = (_NONE if each is None else str(each) for each in (end.exit_code, end.signal))
    return f"{code} {signal} {end.reason.value}"


def parse_end(note: str) -> ProcessEnd:
    """Return the end that a note tells of."""
    code, signal, reason = note.split()
    exit_code, number = (None if each == _NONE else int(each) for each in (code, signal))
    return ProcessEnd(exit_code, number, EndReason(reason))
