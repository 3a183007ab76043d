"""The host's half of the steward, the program that is pid 1 of every sandbox that somebody else makes: a container engine, gVisor.

Whoever starts it gives two byte streams to it and says what is round it; all that happens inside goes through here.
"""

from __future__ import annotations

from pathlib import Path

STEWARD = Path(__file__).parent / "native" / "bin" / "steward"
