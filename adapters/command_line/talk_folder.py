"""The folder that a talk is saved into: what a former talk left there goes, and nobody else's file is touched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

EVENTS = "events.jsonl"
SUMMARY = "summary.json"
CONVERSATION = "conversation.wav"
OURS = re.compile(r"answer_\d+\.wav|conversation\.wav|summary\.json|events\.jsonl")
SUMMARY_KEYS = {"turns", "answers", "barge_in"}


class FolderTaken(Exception):
    """A file stands where the talk would write one, and no talk wrote it; the text says which."""


def prepare(folder: Path) -> list[Path]:
    """Make ``folder``; the paths of what a former talk saved there, which goes when the new one begins. Raises FolderTaken,
    and OSError where the folder cannot be made or written."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in folder.iterdir() if OURS.fullmatch(path.name)}
    former = set(_saved(folder)) & there
    foreign = sorted(there - former)
    if foreign:
        raise FolderTaken(f"{folder / foreign[0]} is there, and no talk wrote it: name another folder, or move it")
    return [folder / name for name in sorted(former)]


def _saved(folder: Path) -> Iterator[str]:
    """The names of what a former talk saved. It is known by its summary; one that was killed by its events alone."""
    if _is_events(folder / EVENTS):
        yield EVENTS
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(summary, dict) or not summary.keys() >= SUMMARY_KEYS:
        return
    yield from (SUMMARY, CONVERSATION)
    answers = summary["answers"] if isinstance(summary["answers"], list) else []
    yield from (str(answer.get("file")) for answer in answers if isinstance(answer, dict))


def _is_events(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        return first == "" or json.loads(first).keys() >= {"at_ms", "type"}
    except (OSError, ValueError, AttributeError):
        return False
