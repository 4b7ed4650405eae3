"""Lane histories against a plain list of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.engines.history import LaneHistory
from gpu_runtime.engines.port import Embeddings, Part, Tokens
from tests.gpu_runtime.engines.fake import rows_for


def flat(parts: list[Part]) -> list[int]:
    return [
        token
        for part in parts
        for token in (part.ids if isinstance(part, Tokens) else [int(row[0]) for row in part.rows])
    ]


def as_part(ids: list[int], embedded: bool) -> Part:
    return Embeddings(rows_for(ids)) if embedded else Tokens(tuple(ids))


ids = st.lists(st.integers(0, 99), max_size=5)
parts = st.lists(st.tuples(ids, st.booleans()), max_size=3)
said = st.lists(st.integers(0, 99), min_size=1, max_size=5)
units = st.lists(st.tuples(parts, said), max_size=6)


def build(prompt: Any, steps: Any) -> tuple[LaneHistory, list[int], list[int], list[int]]:
    """The history, its tokens, where units start, its prompt."""
    history = LaneHistory([as_part(*part) for part in [([1], False), *prompt]])
    model = [1, *(token for tokens, _ in prompt for token in tokens)]
    first, starts = list(model), []
    for unit, said in steps:
        starts.append(len(model))
        history.begin_unit([as_part(*part) for part in unit])
        history.say(said)
        model += [token for tokens, _ in unit for token in tokens] + said
    return history, model, starts, first


@given(parts, units, st.data())
def test_any_stretch_reads_as_it_was_written(prompt: Any, steps: Any, data: st.DataObject) -> None:
    history, model, starts, _ = build(prompt, steps)
    assert (history.tokens, history.unit_starts) == (len(model), starts)
    start = data.draw(st.integers(0, len(model)))
    end = data.draw(st.integers(0, len(model)))
    assert flat(history.parts(start, end)) == model[start:end]
    assert flat(history.parts(start)) == model[start:]
    assert all(len(part) for part in history.parts())


@given(parts, units, st.data())
def test_what_was_cut_is_gone_and_it_goes_on_from_there(prompt: Any, steps: Any, data: st.DataObject) -> None:
    history, model, starts, first = build(prompt, steps)
    cut = data.draw(st.integers(1, len(model)))
    history.truncate(cut)
    assert flat(history.parts()) == model[:cut]
    assert history.prompt_tokens == min(len(first), cut)
    assert history.unit_starts == [start for start in starts if start < cut]
    history.begin_unit([Tokens((7,))])
    history.say([8, 9])
    assert flat(history.parts()) == [*model[:cut], 7, 8, 9]


@given(parts, units, st.integers(0, 60), units)
def test_a_slide_keeps_the_prompt_and_the_newest_units(prompt: Any, steps: Any, keep: int, later: Any) -> None:
    history, model, starts, first = build(prompt, steps)
    other, slid = history.slid(keep)
    kept = model[starts[slid.units_dropped] :] if starts else []
    assert flat(other.parts()) == first + kept
    assert (slid.tokens_before, slid.tokens_after) == (len(model), len(first) + len(kept))
    if len(starts) > slid.units_dropped + 1:
        assert other.tokens <= keep
    if slid.units_dropped:
        whole = [*starts, len(model)]
        assert len(first) + len(model) - whole[slid.units_dropped - 1] > keep, "one more unit would have fitted"
    for unit, said in later:
        history.begin_unit([as_part(*part) for part in unit])
        history.say(said)
    other.append_from(history, slid.tokens_before)
    assert flat(other.parts()) == first + kept + flat(history.parts(slid.tokens_before))
    assert len(other.unit_starts) == len(history.unit_starts) - slid.units_dropped


@pytest.mark.parametrize("position", [0, -1, 4])
def test_a_cut_outside_of_the_lane_is_an_error(position: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        LaneHistory([Tokens((1, 2, 3))]).truncate(position)
