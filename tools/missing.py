"""Prints those packages of lock files, hashes and all, of which no version is installed here.

For an environment that begins with somebody else's versions (vLLM's): what it lacks comes from our locks, what it has
stays.

usage: PYTHON -m tools.missing LOCK ... | PYTHON -m pip install --no-deps --require-hashes -r /dev/stdin
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def blocks(lock: str) -> Iterator[tuple[str, str]]:
    """(name, its lines) of each package of a lock file's text."""
    for block in re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]:
        yield block.split("==", 1)[0], block


def installed(name: str) -> bool:
    """Some version of it."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def main(locks: list[str]) -> None:
    """See the module."""
    for lock in locks:
        for name, block in blocks(Path(lock).read_text(encoding="utf-8")):
            if not installed(name):
                print(block, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
