"""The page that compares names tests; they are there, and none of the complaints' own tests is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs/comparison.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+)::(test_\w+)`", PAGE)) - {("server/test_complaints", "test_x")})


def names_in(module: str) -> set[str]:
    tree = ast.parse((TESTS / f"{module}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("module", sorted({module for module, _ in NAMED}))
def test_every_test_that_is_named_is_there(module: str) -> None:
    assert {name for of, name in NAMED if of == module} - names_in(module) == set()


def test_every_complaint_that_is_tried_is_on_the_page() -> None:
    tried = {name for name in names_in("server/test_complaints") if name.startswith("test_")}
    assert tried - {name for _, name in NAMED} == set()


def test_an_answer_without_a_test_says_no() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("|") and "#" in line.split("|")[1]]
    assert len(rows) > 40
    assert [row[0] for row in rows if not re.search(r"::test_", row[2]) and "**no**" not in row[1]] == []
