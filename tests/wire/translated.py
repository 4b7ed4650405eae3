"""What a dialect makes of a client's events, for tests that look at it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from adapters.wire.dialect import Ask, Dialect, Step
from adapters.wire.dialects import DUPLEX, OPENAI
from adapters.wire.problems import Problem
from core.session.apply import apply
from core.session.config import SessionConfig
from core.session.events import ConfigChanged, Record
from core.session.state import SessionState
from tests.wire.stories import Story

BOTH = pytest.mark.parametrize("dialect", [OPENAI, DUPLEX], ids=lambda dialect: dialect.name)
PCM = base64.b64encode(bytes(320)).decode()


def fresh(dialect: Dialect, config: SessionConfig | None = None) -> SessionState:
    return Story(dialect.make_projection(), config or dialect.defaults).state


def said(dialect: Dialect, event: dict[str, Any], state: SessionState | None = None) -> list[Step]:
    return dialect.translate(json.dumps(event), state or fresh(dialect), head=7)


def command(dialect: Dialect, event: dict[str, Any], state: SessionState | None = None) -> Any:
    (step,) = said(dialect, event, state)
    assert isinstance(step, Ask)
    return step.command


def problem(dialect: Dialect, event: dict[str, Any] | str | bytes, state: SessionState | None = None) -> Problem:
    frame = json.dumps(event) if isinstance(event, dict) else event
    with pytest.raises(Problem) as caught:
        dialect.translate(frame, state or fresh(dialect), head=7)
    return caught.value


def updated(dialect: Dialect, *changes: dict[str, Any], config: SessionConfig | None = None) -> SessionConfig:
    state = fresh(dialect, config)
    for change in changes:
        update = command(dialect, {"type": "session.update", "session": change}, state)
        apply(state, Record(state.position + 1, 1, state.at_ns, ConfigChanged(update.config)))
    return state.config


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
