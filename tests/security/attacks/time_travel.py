"""Sets the clock in every way there is."""

from __future__ import annotations

import platform
import struct

from tests.security.attacks.kernel import call, report

INTEL = platform.machine() == "x86_64"
SETTIMEOFDAY, ADJTIMEX, CLOCK_SETTIME, CLOCK_ADJTIME = (
    (164, 159, 227, 305) if INTEL else (170, 171, 112, 266)
)


def main() -> None:
    # A date that no clock takes: whoever is allowed hears so, and the clock stays as it is.
    never = struct.pack("qq", -1, -1)
    answers = {
        "settimeofday": call(SETTIMEOFDAY, never, 0),
        "time zone": call(SETTIMEOFDAY, 0, struct.pack("ii", 99999, 0)),
        "adjtimex": call(ADJTIMEX, struct.pack("I", 0x2000) + bytes(300)),
        "clock_adjtime": call(CLOCK_ADJTIME, 0, struct.pack("I", 0x2000) + bytes(300)),
        **{f"clock {clock}": call(CLOCK_SETTIME, clock, never) for clock in range(12)},
    }
    report(answers=answers)


if __name__ == "__main__":
    main()
