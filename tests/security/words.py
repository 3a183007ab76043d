"""Words of the host's that must not show inside, and how an attack gets to know them."""

from __future__ import annotations

from tests.security.guest import Guest

# Shorter ones are found everywhere by chance.
_SHORTEST = 8


class Words:
    """Words by what they are; those too short to look for are left out."""

    def __init__(self, **words: str) -> None:
        self._words = {label: word for label, word in words.items() if len(word) >= _SHORTEST}

    async def put(self, guest: Guest, path: str = "words") -> str:
        """Write the words into the sandbox, each in two halves; return where they are."""
        lines = []
        for label, word in self._words.items():
            middle = len(word) // 2
            lines.append(f"{label}\t{word[:middle]}\t{word[middle:]}\n")
        await guest.sandbox.workspace.write(path, "".join(lines).encode())
        return f"/workspace/{path}"
