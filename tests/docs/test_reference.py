"""The generated pages are what the code says; links lead somewhere; the commands that are written down exist."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from core.session import commands, config, events
from tools import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_generated_pages_are_current() -> None:
    # In a process of its own: click's commands remember the help option of whichever test called them first.
    check = subprocess.run(
        [sys.executable, "-m", "tools.reference", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_event_and_every_setting_is_described() -> None:
    for tag, cls in events.EVENT_TYPES.items():
        assert cls.__doc__, f"{tag} has no description"
        assert f"## `{tag}`" in (ROOT / "docs/reference/events.md").read_text()
    for settings in (config.SessionConfig, config.TurnDetection, config.AudioFormat):
        missing = {field.name for field in attrs.fields(settings)} - set(reference.field_docs(settings))
        assert missing == set(), f"{settings.__name__}: a setting without a sentence under it"


def test_every_command_is_described() -> None:
    own = {cls: ast.get_docstring(ast.parse(inspect.getsource(cls)).body[0]) for cls in commands.NAMES}  # type: ignore[arg-type]
    assert [cls.__name__ for cls, text in own.items() if not text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
    for target in (first or second for first, second in targets):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation_and_every_decision_in_the_index() -> None:
    docs = ROOT / "docs"
    navigation, index = (ROOT / "mkdocs.yml").read_text(), (docs / "decisions/index.md").read_text()
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert {page for page in pages if page not in navigation} == set()
    decisions = sorted(page.removeprefix("decisions/") for page in pages if re.match(r"decisions/\d", page))
    assert {page for page in decisions if page not in index} == set()
    assert [int(page[:3]) for page in decisions] == list(range(1, len(decisions) + 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    known = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
    assert used <= known
