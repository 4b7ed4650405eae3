"""What a session remembers is bounded in bytes too: by its items' texts, by one answer's text and marks."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from core.session import commands as c
from core.session import conversation
from core.session import events as e
from core.session.decisions import output
from core.session.state import Phase
from tests.core.session.world import CLIENT_VAD, World


def texts_bytes(world: World) -> int:
    return sum(len(item.text or "") + len(item.source or "") for item in world.state.items.values())


def test_long_items_leave_before_the_conversation_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "ITEMS_BYTES_MAX", 10_000)
    world = World()
    for number in range(40):
        world.do(c.CreateItem("user", "x" * 900, "{}", f"item-{number}"))
        assert texts_bytes(world) <= 10_000
    assert list(world.state.items) == [f"item-{number}" for number in range(29, 40)]
    world.do(c.CreateItem("user", "x" * 20_000, "{}", "long"))
    assert list(world.state.items) == ["long"], "the newest stays however long it is"


def test_transcripts_and_deletions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "ITEMS_BYTES_MAX", 5_000)
    world = World()
    for _ in range(30):
        world.say()
        world.do(c.CommitInput(False))
        world.do(c.TurnHeard(next(reversed(world.state.items)), "é" * 100))
        world.do(c.CreateItem("system", "y" * 100, "{}", "note"))
        world.do(c.DeleteItem("note"))
    assert 4_000 < world.state.items_bytes <= 5_000 + 400


def test_a_text_counts_by_its_own_bytes_whatever_is_said_of_it() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=10))
    assert world.do(c.AppendPart("text", size_bytes=0, text="é" * 4)).refusal is None
    assert world.state.input.pending_bytes == 8
    refusal = world.do(c.AppendPart("text", size_bytes=0, text="éé")).refusal
    assert refusal is not None
    assert (refusal.code, refusal.param) == ("input_too_large", "text")
    assert world.do(c.AppendPart("text", size_bytes=100, text="é")).refusal is None


@pytest.mark.parametrize(
    ("limit", "most", "unit"),
    [("ANSWER_CHARS_MAX", 40, {"text": " word"}), ("ANSWER_MARKS_MAX", 8, {"text": ""})],
    ids=["text", "marks"],
)
def test_an_answer_without_end_fails_and_the_session_lives(
    limit: str, most: int, unit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, limit, most)
    world = World()
    world.ask()
    world.make(8, **unit)
    assert not world.events(e.ResponseEnded)
    world.make(1, **unit)
    (ended,) = world.events(e.ResponseEnded)
    assert (ended.status, ended.reason) == ("failed", "answer_too_long")
    assert world.state.phase is Phase.OPEN
    world.answered(3)
