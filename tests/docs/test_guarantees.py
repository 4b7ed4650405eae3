"""The page of promises says where each is checked; what it names is there, and no check is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs/guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+)::(\w+)`", PAGE)) - {("module", "name")})
WHOLE = sorted(set(re.findall(r"`((?:core|crash|server|specs|store|wire)/[\w/]+)`", PAGE)))
CHECKS = (
    "core/session/promises",
    "core/session/parts_promises",
    "core/session/window_promises",
    "core/actors/stories",
)
"""Modules of which every ``check_`` is the check of a promise."""


def names_in(module: str) -> set[str]:
    tree = ast.parse((TESTS / f"{module}.py").read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def rows(header: str) -> list[list[str]]:
    table = PAGE.split(header)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("module", sorted({module for module, _ in NAMED}))
def test_everything_that_is_named_is_there(module: str) -> None:
    assert {name for of, name in NAMED if of == module} - names_in(module) == set()


def test_modules_that_are_named_as_a_whole_are_there() -> None:
    assert [module for module in WHOLE if not (TESTS / f"{module}.py").exists()] == []


def test_every_promise_has_a_check_and_no_other_is_checked() -> None:
    promised = [row[0] for row in rows("| name | promise |")]
    checked = rows("| promise | the machine, after each step |")
    assert [row[0] for row in checked] == promised
    assert [row[0] for row in checked if not any("`" in cell for cell in row[1:])] == []


def test_every_check_is_on_the_page() -> None:
    there = {(module, name) for module in CHECKS for name in names_in(module) if name.startswith("check_")}
    # A refusal's shape and a generation's end belong to no promise of their own: "fences" in the mutants' table.
    apart = {("core/session/promises", "check_refusal"), ("core/session/promises", "check_generation")}
    assert there - set(NAMED) - apart == set()
