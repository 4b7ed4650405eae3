"""Whatever happens: numbers are dense, every answer that a client sees begin ends once, and every gap is announced."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.minicpmo.projection import MiniCPMOProjection
from adapters.wire.moshi.projection import MoshiProjection
from adapters.wire.openai.projection import OpenAIProjection
from adapters.wire.schema.shapes import skipped_of_done
from core.ports.projection import Projection
from core.session import commands as c
from core.session.apply import apply
from core.session.config import INPUT_KINDS
from core.session.events import Record, SessionOpened
from core.session.state import SessionState
from tests.wire.stories import Story, number_of

ACTIONS = st.one_of(
    st.tuples(st.just("ask")),
    st.tuples(st.just("speech_begins")),
    st.tuples(st.just("speech_ends"), st.sampled_from(["mm-hmm", "", "stop it now", None]), st.integers(100, 2_000)),
    st.tuples(st.just("answer"), st.sampled_from(["one ", "two three ", ""]), st.sampled_from([0, 80, 400, 3_000])),
    st.tuples(st.just("done")),
    st.tuples(st.just("call"), st.sampled_from(["look_up", "look_up", ""])),
    st.tuples(st.just("show"), st.sampled_from([10, 5_000_000])),
    st.tuples(st.just("type"), st.sampled_from(["so", " "])),
    st.tuples(st.just("look")),
    st.tuples(st.just("deliver"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.integers(0, 3_000)),
    st.tuples(st.just("cancel"), st.sampled_from(["client_cancelled", "barge_in", "output_audio_buffer_clear"])),
    st.tuples(st.just("ack"), st.integers(0, 4_000), st.booleans()),
    st.tuples(st.just("commit")),
    st.tuples(st.just("create"), st.booleans()),
    st.tuples(st.just("lose")),
    st.tuples(st.just("gain")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("resume"), st.integers(0, 30)),
    st.tuples(st.just("update")),
)


def act(story: Story, action: tuple[Any, ...]) -> None:
    match action:
        case ("answer", text, ms):
            if story.state.active is not None:
                story.answer(text, ms)
        case ("done",):
            if story.state.active is not None:
                story.done()
        case ("call", name):
            if story.state.active is not None:
                active = story.state.active
                story.do(c.ModelCall(story.state.epoch, active.response_id, "", name, "{}"))
        case ("show", size):
            story.do(c.AppendAudio("", 0, 0, images=(c.ImageBody("pic", size, "image/png"),)))
        case ("type", text):
            story.do(c.AppendPart("text", text=text))
        case ("look",):
            image = c.ImageBody("pic", 10, "image/png")
            story.do(c.CreateItem("user", "look", "{}", images=(image,)))
        case ("ask",):
            story.speech_begins()
            story.speech_ends("what is it", 700)
        case ("cancel", reason):
            story.do(c.CancelOutput(reason, quiet=True))
        case ("ack", ms, truncate):
            story.do(c.AckPlayback(ms, truncate=truncate))
        case ("commit",):
            story.append()
            story.do(c.CommitInput(create_response=True))
        case ("create", apart):
            story.do(c.CreateResponse(out_of_band=apart))
        case ("lose",):
            story.do(c.LoseRuntime("killed"))
        case ("gain",):
            story.do(c.GainRuntime(0, INPUT_KINDS))
        case ("fail",):
            story.do(c.FailOutput())
        case ("update",):
            story.do(c.UpdateConfig(story.state.config))
        case (verb, *arguments):
            getattr(story, verb)(*arguments)


@pytest.mark.parametrize("make", [OpenAIProjection, DuplexProjection])
@given(actions=st.lists(ACTIONS, max_size=60))
def test_the_stream_can_be_rebuilt_whatever_is_cut(
    make: type[OpenAIProjection], actions: list[tuple[Any, ...]]
) -> None:
    story = Story(make())
    for action in actions:
        act(story, action)
    story.do(c.CancelOutput("client_cancelled", quiet=True))
    while story.state.active is not None:  # turns that waited are answered, too
        story.done()
    story.deliver()

    assert [frame.number for frame in story.frames] == list(range(1, story.projection.number + 1))
    created = Counter(p["response"]["id"] for p in story.seen if p["type"] == "response.created")
    done = Counter(p["response"]["id"] for p in story.seen if p["type"] == "response.done")
    assert created == done
    assert all(count == 1 for count in done.values())
    _nothing_follows_an_end(story.seen)
    _calls_are_known_to_both(story)
    announced = {n for p in story.seen if p["type"] == "response.done" for n in _skipped(p)}
    announced |= story.skipped
    numbers = [number_of(p) for p in story.seen]
    assert numbers == sorted(set(numbers)), "each once, in order"
    got = set(numbers)
    assert got.isdisjoint(announced)
    assert got | announced == set(range(1, story.projection.number + 1))
    json.dumps([dict(frame.payload) for frame in story.frames], allow_nan=False)
    _a_replay_gives_the_same(story, make)


_ALL = [
    OpenAIProjection,
    DuplexProjection,
    lambda: OpenAIProjection(1),
    lambda: DuplexProjection(1),
    MiniCPMOProjection,
    MoshiProjection,
]


@pytest.mark.parametrize("make", _ALL)
@given(actions=st.lists(ACTIONS, max_size=60), data=st.data())
def test_a_stream_whose_beginning_was_passed_over_goes_on_as_if_it_had_been_folded(
    make: Callable[[], Projection], actions: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    story = Story(make())
    for action in actions:
        act(story, action)
    story.do(c.CancelOutput("client_cancelled", quiet=True))
    passed_over = data.draw(st.integers(0, len(story.records)), label="records passed over")

    projection, state, frames = make(), SessionState(), []
    for record in story.records[:passed_over]:
        apply(state, record)
        projection.pass_over(record, state)
    first = projection.number + 1
    for record in story.records[passed_over:]:
        apply(state, record)
        frames.extend(projection.fold(record, state))
    assert frames == [frame for frame in story.frames if frame.number >= first]
    assert all(frame.position > passed_over for frame in frames)
    assert projection.number == story.projection.number


def _calls_are_known_to_both(story: Story) -> None:
    """What the client was asked to call is in the conversation, and nothing else (an answer out of band has none)."""
    asked = {p["item_id"] for p in story.seen if p["type"] == "response.function_call_arguments.done"}
    apart = {i for response in story.state.responses.values() if response.out_of_band for i in response.calls}
    told = {item_id for item_id, item in story.state.items.items() if item.name}
    gone = {p["item_id"] for p in story.seen if p["type"] == "conversation.item.deleted"}
    assert told <= asked, "of which the client never heard"
    assert told.isdisjoint(gone)
    assert asked - told <= apart | gone


def _skipped(done: dict[str, Any]) -> set[int]:
    skipped = (done["response"]["metadata"] or {}).get("skipped")
    if isinstance(skipped, str):
        pairs = [tuple(map(int, pair.split("-"))) for pair in skipped.split(",")]
    else:
        pairs = list(skipped_of_done(done))
    return {n for first, last in pairs for n in range(first, last + 1)}


def _nothing_follows_an_end(seen: list[dict[str, Any]]) -> None:
    over: set[str] = set()
    for payload in seen:
        if payload["type"] == "response.done":
            over.add(payload["response"]["id"])
        elif payload["type"].startswith("response."):
            assert payload.get("response_id") not in over, payload["type"]


def _a_replay_gives_the_same(story: Story, make: type[OpenAIProjection]) -> None:
    projection, state, frames = make(), SessionState(), []
    opened = next(record for record in story.records if isinstance(record.event, SessionOpened))
    assert opened.position == 1
    for record in story.records:
        assert isinstance(record, Record)
        apply(state, record)
        frames.extend(projection.fold(record, state))
    assert frames == story.frames
