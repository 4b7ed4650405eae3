"""The demo gets one result a chunk whatever is cut; Moshi gets as much sound as it gives, and none of what is dead."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.minicpmo.projection import MiniCPMOProjection
from adapters.wire.moshi.projection import MoshiProjection
from core.session import commands as c
from core.session import events as e
from tests.wire.stories import Story

_ACTIONS = st.one_of(
    st.tuples(st.just("ask")),
    st.tuples(st.just("append")),
    st.tuples(st.just("answer"), st.sampled_from(["one ", "two three ", ""]), st.sampled_from([0, 80, 400, 3_000])),
    st.tuples(st.just("done")),
    st.tuples(st.just("deliver"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.integers(0, 3_000)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("gain")),
    st.tuples(st.just("pause")),
    st.tuples(st.just("unpause")),
)


def _act(story: Story, action: tuple[Any, ...]) -> None:
    match action:
        case ("ask",):
            story.speech_begins()
            story.speech_ends("what is it", 700)
        case ("answer", text, ms):
            if story.state.active is not None:
                story.answer(text, ms)
        case ("done",):
            if story.state.active is not None:
                story.done()
        case ("cut",):
            story.do(c.CancelOutput("barge_in", quiet=True))
        case ("lose",):
            story.do(c.LoseRuntime("killed"))
        case ("gain",):
            story.do(c.GainRuntime())
        case ("pause",):
            story.do(c.Pause())
        case ("unpause",):
            story.do(c.Unpause())
        case (verb, *arguments):
            getattr(story, verb)(*arguments)


@given(actions=st.lists(_ACTIONS, max_size=60))
def test_each_chunk_has_exactly_one_result_in_order(actions: list[tuple[Any, ...]]) -> None:
    story = Story(MiniCPMOProjection())
    for action in actions:
        _act(story, action)
    story.deliver()
    chunks = sum(isinstance(record.event, e.Append) for record in story.records)
    results = [payload for payload in story.seen if payload["type"] == "result"]
    assert [result["current_time"] for result in results] == list(range(chunks))
    assert [frame.number for frame in story.frames] == list(range(1, story.projection.number + 1))


@given(actions=st.lists(_ACTIONS, max_size=60))
def test_the_demos_ledger_is_what_was_handed_over(actions: list[tuple[Any, ...]]) -> None:
    _handed_is_sent(Story(MiniCPMOProjection()), actions)


@given(actions=st.lists(_ACTIONS, max_size=60))
def test_sound_flows_out_as_it_flows_in(actions: list[tuple[Any, ...]]) -> None:
    story = Story(MoshiProjection())
    for action in actions:
        _act(story, action)
    story.deliver()
    dead = {entry.frame.number for entry in story.outbox.entries if entry.dead}
    got_ms = sum(frame.audio_ms or frame.payload.get("ms", 0) for frame in story.frames if frame.number not in dead)
    given_ms = story.state.input.now_ms
    made_ms = sum(record.event.audio_ms for record in story.records if isinstance(record.event, e.Output))
    assert given_ms <= got_ms + made_ms  # silence fills what no answer does, but for answers that were cut after it
    assert got_ms <= given_ms + made_ms


def test_an_answer_that_is_made_fast_delays_nothing_behind_it() -> None:
    story = Story(MoshiProjection())
    story.ask()
    story.deliver()
    before = sum(frame.payload.get("ms", 0) for frame in story.frames)
    story.answer("one two ", 1_000)
    story.done()
    for _ in range(5):
        story.append(200)
    assert sum(frame.payload.get("ms", 0) for frame in story.frames) == before  # the answer itself fills this second
    story.append(200)
    assert story.frames[-1].payload == {"type": "silence", "ms": 200}


def _chunk(story: Story) -> tuple[bool, str, bool]:
    """The next chunk's result: listens, its text, ends the turn."""
    story.append()
    result = story.frames[-1].payload
    return result["is_listen"], result["text"], result["end_of_turn"]


def test_the_demo_is_told_where_its_turn_ends() -> None:
    story = Story(MiniCPMOProjection())
    story.ask()
    assert _chunk(story) == (True, "", False)
    story.answer("one ", 400)
    assert _chunk(story) == (False, "one ", False)
    assert _chunk(story) == (False, "", False), "the answer goes on, and has nothing new to give"
    story.answer("two ", 400)
    story.done()
    assert _chunk(story) == (False, "two ", True)
    assert _chunk(story) == (True, "", False)


def test_an_answer_that_ended_behind_its_last_words_ends_the_turn_with_the_next_chunk() -> None:
    story = Story(MiniCPMOProjection())
    story.ask()
    story.answer("one ", 400)
    assert _chunk(story) == (False, "one ", False)
    story.done()
    assert _chunk(story) == (True, "", True)
    assert _chunk(story) == (True, "", False)


def test_a_cut_ends_the_turn_of_the_demo_once() -> None:
    story = Story(MiniCPMOProjection())
    story.ask()
    story.answer("one ", 3_000)
    _chunk(story)
    story.deliver()
    story.do(c.CancelOutput("barge_in"))
    assert _chunk(story) == (True, "", True)
    assert _chunk(story) == (True, "", False)


def test_a_cut_of_a_result_that_waits_ends_the_turn_in_the_one_that_takes_its_place() -> None:
    story = Story(MiniCPMOProjection())
    story.ask()
    story.deliver()
    story.answer("one ", 3_000)
    story.done()
    assert _chunk(story) == (False, "one ", True)
    story.do(c.CancelOutput("barge_in"))
    (instead,) = story.deliver()
    assert (instead["is_listen"], instead["text"], instead["end_of_turn"]) == (True, "", True)
    assert _chunk(story) == (True, "", False)


def _silences(story: Story, chunks: int) -> list[int]:
    """How much silence answers each of so many chunks of 200 ms."""
    heard = []
    for _ in range(chunks):
        before = len(story.frames)
        story.append(200)
        heard.append(sum(frame.payload["ms"] for frame in story.frames[before:]))
    return heard


def test_sound_that_was_cut_fills_no_time_and_sound_that_was_given_does() -> None:
    for handed_over in (True, False):
        story = Story(MoshiProjection())
        story.ask()
        story.deliver()
        story.answer("one ", 600)
        if handed_over:
            story.deliver()
        story.do(c.CancelOutput("barge_in"))
        assert story.frames[-1].payload == {"type": "cut"}, "what the encoder holds dies with it"
        assert _silences(story, 4) == ([0, 0, 0, 200] if handed_over else [200] * 4)


@given(actions=st.lists(_ACTIONS, max_size=60))
def test_moshis_ledger_is_what_was_handed_over(actions: list[tuple[Any, ...]]) -> None:
    _handed_is_sent(Story(MoshiProjection()), actions)


def _handed_is_sent(story: Story, actions: list[tuple[Any, ...]]) -> None:
    handed: dict[str, int] = {}
    for action in actions:
        _act(story, action)
    story.deliver()
    for entry in story.outbox.entries:
        frame = entry.frame
        if frame.audio_ms and frame.response_id is not None and frame.number in story.handed:
            handed[frame.response_id] = handed.get(frame.response_id, 0) + frame.audio_ms
    assert handed == {response_id: sent.sent_ms for response_id, sent in story.outbox.sent.items()}
