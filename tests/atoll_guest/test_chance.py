"""What would be the same in all copies of a process is renewed: even if they all have one process number."""

from __future__ import annotations

import subprocess
import sys

import pytest

# OpenSSL notices a fork by the process's number, so two copies with their original's number draw the same.
SAME_NUMBER = """
import ctypes, os, ssl, sys
from atoll_guest.zygote import sources_of_chance

def first_of_a_namespace(action):
    assert ctypes.CDLL(None).unshare(0x20000000) == 0
    if os.fork() == 0:
        action()
    os.wait()
    os._exit(0)

def draw():
    if sys.argv[1] == "renewed":
        for renew in sources_of_chance():
            renew()
    os.write(1, f"{os.getpid()} {ssl.RAND_bytes(16).hex()}\\n".encode())
    os._exit(0)

def draw_twice():
    ssl.RAND_bytes(1)
    for _ in range(2):
        if os.fork() == 0:
            first_of_a_namespace(draw)
        os.wait()
    os._exit(0)

first_of_a_namespace(draw_twice)
"""


def draw_in_two_copies(how: str) -> tuple[str, str]:
    command = [sys.executable, "-c", SAME_NUMBER, how]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (first_number, first), (second_number, second) = (line.split() for line in lines)
    assert first_number == second_number == "1"
    return first, second


@pytest.mark.root_only
def test_openssl_draws_other_numbers_in_each_copy() -> None:
    first, second = draw_in_two_copies("as it was")
    assert first == second, (
        "OpenSSL has learnt to notice such copies; renewing it is needed no more"
    )
    first, second = draw_in_two_copies("renewed")
    assert first != second


def test_nothing_is_renewed_that_was_not_loaded() -> None:
    code = "import sys; from atoll_guest.zygote import sources_of_chance; sys.exit(len(sources_of_chance()))"
    subprocess.run([sys.executable, "-c", code], check=True)


NUMPY = """
import os, sys, numpy.random
from atoll_guest.zygote import sources_of_chance

renewals = sources_of_chance() if sys.argv[1] == "renewed" else []
for _ in range(2):
    if os.fork() == 0:
        for renew in renewals:
            renew()
        os.write(1, numpy.random.bytes(16).hex().encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def test_numpy_draws_other_numbers_in_each_copy() -> None:
    drawn = {}
    for how in ("as it was", "renewed"):
        command = [sys.executable, "-c", NUMPY, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        drawn[how] = set(done.stdout.split())
    assert len(drawn["as it was"]) == 1
    assert len(drawn["renewed"]) == 2
