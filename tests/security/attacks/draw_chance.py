"""Draws from every source of chance that a kernel has, as a cell; two kernels must never draw the same."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import secrets
import ssl
import tempfile
import uuid

from tests.security.attacks.kernel import report


def main() -> None:
    drawn = {
        "random": f"{random.getrandbits(64):x}",
        "a new Random": f"{random.Random().getrandbits(64):x}",
        "shuffle": "".join(random.sample("abcdefghijklmnopqrstuvwxyz", 26)),
        "SystemRandom": f"{random.SystemRandom().getrandbits(64):x}",
        "urandom": os.urandom(16).hex(),
        "secrets": secrets.token_hex(16),
        "OpenSSL": ssl.RAND_bytes(16).hex(),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "name of a temporary file": os.path.basename(tempfile.mktemp()),
        "name of the next one": os.path.basename(tempfile.mktemp()),
        "salt": hashlib.scrypt(b"x", salt=os.urandom(8), n=2, r=1, p=1).hex(),
    }
    if importlib.util.find_spec("numpy"):
        import numpy  # type: ignore[import-not-found, unused-ignore]

        drawn["numpy"] = numpy.random.bytes(16).hex()
        drawn["numpy's generator"] = numpy.random.default_rng().bytes(16).hex()
    report(**drawn)
