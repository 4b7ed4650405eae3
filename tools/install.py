"""pip with a progress bar: ``python -m tools.install -r FILE.lock [pip's options]``.

pip is either silent for a minute or prints a page. This counts what it has got of what the lock file names, and shows that
on a terminal; elsewhere it stays silent. It needs nothing but the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "--no-color")
PINNED = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
GOT = re.compile(
    r"(?:Collecting|Ignoring|Requirement already satisfied:) ([A-Za-z0-9._-]+)|Processing (?:\S*/)?([A-Za-z0-9._]+?)-\d"
)
"""pip has one more package, or need not have it; a wheel that lies in a folder is *processed*."""
BAR_CELLS = 24
LINE_CHARS = 78
KEPT_LINES = 20


def pinned(arguments: Iterable[str]) -> int:
    """How many packages the lock files name that follow ``-r``."""
    words = list(arguments)
    files = [after for before, after in pairwise(words) if before == "-r"]
    return sum(len(PINNED.findall(Path(file).read_text("utf-8"))) for file in files)


def bar(done: int, total: int, doing: str) -> str:
    """One line, as wide as each before it, so that it covers that."""
    full = BAR_CELLS * min(done, total) // max(total, 1)
    return f"  [{'#' * full}{'.' * (BAR_CELLS - full)}] {done}/{total} {doing}"[:LINE_CHARS].ljust(LINE_CHARS)


def progress(lines: Iterable[str], total: int) -> Iterable[str]:
    """What to show, line by line of pip's output."""
    done = 0
    for line in lines:
        if found := GOT.match(line.strip()):
            done += 1
            yield bar(done, total, found[1] or found[2])
        elif line.startswith("Installing collected packages"):
            yield bar(done, total, "unpacking ...")


def main(arguments: list[str]) -> int:
    """Install; pip's exit code."""
    total, shows = pinned(arguments), sys.stderr.isatty()
    kept: list[str] = []

    def read(lines: Iterable[str]) -> Iterable[str]:
        for line in lines:
            kept[:] = [*kept[-KEPT_LINES + 1 :], line]
            yield line

    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = (sys.executable, *PIP, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as pip:
        assert pip.stdout is not None
        for line in progress(read(pip.stdout), total):
            if shows:
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    if shows:
        print(f"\r{' ' * LINE_CHARS}\r", end="", file=sys.stderr, flush=True)
    if pip.returncode:
        print("".join(kept), end="", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
