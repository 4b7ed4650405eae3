"""Every `duologue` command and flag that the pages tell a reader to type exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from adapters.command_line.main import main
from tools import reference

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "docs" / "reference"
PAGES = [path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if GENERATED not in path.parents]


def commands() -> dict[str, click.Command]:
    top = click.Context(main, info_name="duologue")
    return {context.command_path: command for context, command in reference.commands_of(main, top)}


def typed() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of each command line in a code block or between backquotes."""
    for page in PAGES:
        for line in re.findall(
            r"^\$ (?:\.venv/bin/)?(duologue .*)$|`(duologue [a-z][^`]*)`", page.read_text(), re.MULTILINE
        ):
            yield page.relative_to(ROOT).as_posix(), shlex.split(line[0] or line[1], comments=True)


@pytest.mark.parametrize(
    ("page", "words"), list(typed()), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_the_command_and_its_flags_exist(page: str, words: list[str]) -> None:
    known = commands()
    path = " ".join(words[:3]) if " ".join(words[:3]) in known else " ".join(words[:2])
    group = any(name.startswith(path) for name in known)
    assert path in known or group, f"{page}: no command {path!r}"
    flags = {word.split("=")[0] for word in words if word.startswith("--")} - {"--help"}
    command = known.get(path)
    options = {option for parameter in command.params for option in parameter.opts} if command else set()
    assert flags <= options, f"{page}: {sorted(flags - options)}"


def test_there_are_commands_to_check() -> None:
    assert len(list(typed())) > 10
