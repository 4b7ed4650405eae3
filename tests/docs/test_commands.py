"""Every `duologue` command and flag that the pages tell a reader to type exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs
import click
import pytest

from adapters.command_line.config_file import model_options, read_config, session_defaults
from adapters.command_line.main import main
from gpu_runtime.models.cascade.settings import Settings
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


def shown_files() -> Iterator[tuple[str, str]]:
    """(where, text) of each settings file that a page or ``serve --help`` shows."""
    for page in PAGES:
        for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            if "pyproject.toml" not in text.partition("\n")[0]:
                yield page.relative_to(ROOT).as_posix(), text
    help_text = commands()["duologue serve"].help or ""
    yield "duologue serve --help", help_text.partition("A file for --config:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(("where", "text"), list(shown_files()))
def test_the_settings_files_that_are_shown_can_be_read(where: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text(text)
    values = read_config(path)
    assert values.get("model", "cascade") == "cascade"
    assert model_options(tuple(values["model_option"])).keys() <= {field.name for field in attrs.fields(Settings)}
    assert session_defaults(values["session"])


def test_there_are_commands_to_check() -> None:
    assert len(list(typed())) > 10
