"""The one table of why answers end: what the code can write is in it, and what is in it can be written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from adapters.server.metrics import _CUT_REASONS
from core.actors.translate import STATUS
from core.session.endings import CUT_REASONS, FAILED_BY_MODEL, FAILED_BY_SERVER, FAILED_REASONS, INCOMPLETE_REASONS
from gpu_runtime.scheduler.units import Admission

ROOT = Path(__file__).resolve().parents[3]
CUTS = {"cut": 1, "CancelOutput": 0, "cancel": 1}
DRAINS = {"drain": 1}
FAILS = {"FailOutput": 0}
LANES_FAIL = {"LaneFailed": 3, "LaneError": 0, "PartFailed": 0, "_fail": 0, "_failed": 1}
"""Call -> which of its arguments is the reason."""

NO_ANSWERS = {"recogniser_error"}
"""Of speech that could not be read: its turn is answered all the same."""


def said(calls: dict[str, int], *folders: str) -> set[str]:
    """Every reason that stands in one of these calls, or in a variable ``code``."""
    found: set[str] = set()
    for folder in folders:
        for node in _nodes(folder):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if len(node.args) > calls.get(name, len(node.args)):
                    found.update(_texts(node.args[calls[name]]))
            elif calls is LANES_FAIL and isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
                found.update(_texts(node.value))
    return found


@cache
def _nodes(folder: str) -> tuple[ast.Call | ast.Assign, ...]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Assign))


def _texts(argument: ast.expr) -> Iterator[str]:
    for one in (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def test_cuts() -> None:
    assert said(CUTS, "core", "adapters/wire", "adapters/server") == set(CUT_REASONS)


def test_answers_that_end_early() -> None:
    assert said(DRAINS, "core") | {reason for reason, status in STATUS.items() if status == "incomplete"} == set(
        INCOMPLETE_REASONS
    )


def test_failures_of_the_session() -> None:
    in_actor = said({"LaneFailed": 3}, "core")
    assert in_actor == {"runtime_busy"}
    assert said(FAILS, "core", "adapters/wire") | in_actor == set(FAILED_BY_SERVER)


def test_failures_of_the_model() -> None:
    refused = {verdict.value for verdict in Admission} - {Admission.ADMITTED.value, Admission.QUEUED.value}
    found = said(LANES_FAIL, "gpu_runtime") - NO_ANSWERS | refused
    assert found <= set(FAILED_REASONS)
    assert set(FAILED_BY_MODEL) <= found


def test_no_reason_means_two_things() -> None:
    tables = (CUT_REASONS, INCOMPLETE_REASONS, FAILED_BY_SERVER, FAILED_BY_MODEL)
    assert len({code for table in tables for code in table}) == sum(len(table) for table in tables)


def test_what_the_server_cuts_is_named_in_the_metrics() -> None:
    written = said(CUTS, "core", "adapters/wire") | said(FAILS, "core")
    assert written <= _CUT_REASONS
