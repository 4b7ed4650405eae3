"""Files that are generated from the code: written, or compared so that they cannot drift."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

Files = Mapping[Path, str]
"""Path -> what the file should hold."""


def stale(files: Files) -> list[Path]:
    """Those that are missing or hold something else."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def write_or_check(files: Files, source: str, arguments: list[str]) -> int:
    """Write the files, or with ``--check`` only compare with what ``source`` says; the exit status."""
    if "--check" in arguments:
        found = stale(files)
        for path in found:
            print(f"{path.relative_to(ROOT)} is not what {source} says: run `make format`")
        return 1 if found else 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0
