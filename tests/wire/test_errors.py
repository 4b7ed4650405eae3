"""The one table of error codes: what is sent is in it, and what is in it is sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.wire.dialects import DUPLEX, OPENAI
from adapters.wire.problems import error_body
from adapters.wire.schema.errors import CODES, HTTP_CODES, RATE_LIMIT, RETRYABLE_RESUME_CODES, SERVER_ERROR
from core.session import refusals

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(ROOT / "adapters/server").rglob("*.py"),
    *(ROOT / "adapters/wire").rglob("*.py"),
    *(ROOT / "core/actors").rglob("*.py"),
]
CODE_AT = {
    **dict.fromkeys(("Problem", "NotAdmitted", "ResumeRefused", "_refusal", "refusal", "error_body"), 0),
    "error_response": 1,
}
"""Call -> which of its arguments is the code."""


def sent() -> Iterator[str]:
    """Every code that stands in a call."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            at = CODE_AT.get(name)
            if at is not None and len(node.args) > at:
                yield from _codes(node.args[at])


def _codes(argument: ast.expr) -> Iterator[str]:
    """A code that stands there, or each of two."""
    for one in (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def test_what_is_sent_is_in_the_table_and_the_other_way_round() -> None:
    found = set(sent())
    assert found <= {*CODES, *HTTP_CODES, *refusals.CODES}
    assert {*CODES, *HTTP_CODES} - found == {"runtime_unavailable"}, "only the machine sends that"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("store_unavailable", SERVER_ERROR),
        ("runtime_unavailable", SERVER_ERROR),
        ("shutdown", SERVER_ERROR),
        ("input_backpressure", RATE_LIMIT),
        ("item_unknown", "invalid_request_error"),
    ],
)
def test_a_code_has_its_type(code: str, kind: str) -> None:
    assert error_body(code, "")["type"] == kind


def test_no_code_is_renamed_into_another_type() -> None:
    for dialect in (OPENAI, DUPLEX):
        for code in CODES:
            assert error_body(dialect.rename(code), "")["type"] == error_body(code, "")["type"]


def test_what_may_be_tried_again_is_known() -> None:
    assert RETRYABLE_RESUME_CODES - {"timeout"} <= set(CODES)
