"""The page of what the wire promises: the code and the tests that it names are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_guarantees import TESTS, names_in

PAGE = (TESTS.parent / "docs/wire.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+)::(\w+)`", PAGE)))
CODE = sorted(set(re.findall(r"`((?:adapters|core|gpu_runtime)/[\w/.]+)`", PAGE)))


@pytest.mark.parametrize("module", sorted({module for module, _ in NAMED}))
def test_every_test_that_is_named_is_there(module: str) -> None:
    assert {name for of, name in NAMED if of == module} - names_in(module) == set()


def test_all_code_that_is_named_is_there() -> None:
    assert [path for path in CODE if not (TESTS.parent / path).exists()] == []


def test_every_promise_names_a_test() -> None:
    rows = PAGE.split("| clients count on |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row.split("|")[3]] == []
