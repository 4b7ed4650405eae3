"""Frames: what goes in comes out, however the stream is cut, and nothing else gets through."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ports.runtime import Durations, Feed, LaneEnded, ModelStatistics, RuntimeLost
from gpu_runtime.protocol import (
    FRAME_BYTES_MAX,
    FROM_WORKER,
    FROM_WORKER_CODEC,
    TO_WORKER,
    TO_WORKER_CODEC,
    Codec,
    Figures,
    FrameBuffer,
    Load,
    ProtocolError,
)

# A setting is text, a number or a boolean; hypothesis cannot know that from ``dict[str, Any]``.
st.register_type_strategy(
    Load, st.builds(Load, st.dictionaries(st.text(), st.text() | st.booleans() | st.integers(-(2**63), 2**64 - 1)))
)
# What msgpack can hold; every counter of ours is far below.
st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))
# Not a number travels well, and is then unequal to itself.
st.register_type_strategy(float, st.floats(allow_nan=False))
# A histogram has a count for each bound and one more.
BOUNDS = st.lists(st.floats(0, 1e6), unique=True, max_size=5).map(lambda bounds: tuple(sorted(bounds)))
st.register_type_strategy(
    Durations,
    BOUNDS.flatmap(
        lambda bounds: st.builds(
            Durations, st.just(bounds), st.tuples(*[st.integers(0, 2**63)] * (len(bounds) + 1)), st.floats(0, 1e12)
        )
    ),
)


def anything_of(classes: dict[str, type]) -> st.SearchStrategy[object]:
    return st.sampled_from(sorted(classes)).flatmap(lambda tag: st.from_type(classes[tag]))


def payloads(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    return list(buffer.feed(data))


@pytest.mark.parametrize("tag", sorted(TO_WORKER))
@given(data=st.data())
def test_messages_to_the_worker_come_out_as_they_went_in(tag: str, data: st.DataObject) -> None:
    message = data.draw(st.from_type(TO_WORKER[tag]))
    (payload,) = payloads(FrameBuffer(), TO_WORKER_CODEC.encode(message))
    assert TO_WORKER_CODEC.decode(payload) == message


@pytest.mark.parametrize("tag", sorted(FROM_WORKER))
@given(data=st.data())
def test_messages_from_the_worker_come_out_as_they_went_in(tag: str, data: st.DataObject) -> None:
    message = data.draw(st.from_type(FROM_WORKER[tag]))
    (payload,) = payloads(FrameBuffer(), FROM_WORKER_CODEC.encode(message))
    assert FROM_WORKER_CODEC.decode(payload) == message


@given(st.lists(anything_of(FROM_WORKER), max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_stream_may_be_cut_anywhere(messages: list[object], cuts: list[int]) -> None:
    stream = b"".join(FROM_WORKER_CODEC.encode(message) for message in messages)
    buffer, got, start, turn = FrameBuffer(), [], 0, 0
    while start < len(stream):
        size = cuts[turn % len(cuts)]
        got += [FROM_WORKER_CODEC.decode(payload) for payload in buffer.feed(stream[start : start + size])]
        start, turn = start + size, turn + 1
    buffer.end()
    assert got == messages


@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_and_nothing_worse(noise: bytes) -> None:
    buffer = FrameBuffer(frame_bytes_max=100)
    code = None
    try:
        for payload in buffer.feed(noise):
            TO_WORKER_CODEC.decode(payload)
        buffer.end()
    except ProtocolError as error:
        code = error.code
    assert code in {None, "frame_too_large", "torn_frame", "bad_frame", "unknown_tag", "bad_body"}


@given(anything_of(TO_WORKER), st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_frame_decodes_or_is_a_protocol_error(message: object, place: int, value: int) -> None:
    damaged = bytearray(TO_WORKER_CODEC.encode(message))  # type: ignore[arg-type]
    damaged[place % len(damaged)] = value
    try:
        for payload in FrameBuffer().feed(bytes(damaged)):
            TO_WORKER_CODEC.decode(payload)
    except ProtocolError:
        pass


def code_of(codec: Codec[object], payload: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        codec.decode(payload)
    return str(caught.value)


def test_each_fault_has_its_code_and_says_what_it_was() -> None:
    codec: Codec[object] = Codec(TO_WORKER)
    assert code_of(codec, msgspec.msgpack.encode(("fly", {}))) == "unknown_tag: 'fly'"
    assert code_of(codec, b"\xc1").startswith("bad_frame: 1 bytes are no [tag, body]")
    wrong = msgspec.msgpack.encode(("abort_lane", {"session": "s", "epoch": "secret"}))
    assert code_of(codec, wrong) == "bad_body: abort_lane: Expected `int`, got `str` - at `$.epoch`"
    lacking = msgspec.msgpack.encode(("abort_lane", {"session": "s"}))
    assert code_of(codec, lacking).startswith("bad_body: abort_lane: Object missing required field `epoch`")


def test_a_message_of_the_other_direction_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="unknown_tag: LaneEnded does not travel this way"):
        TO_WORKER_CODEC.encode(LaneEnded("s", 1, "r", "completed"))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="unknown_tag: RuntimeLost"):
        FROM_WORKER_CODEC.encode(RuntimeLost("a dead worker says nothing"))


def test_sizes_are_bounded_both_ways() -> None:
    with pytest.raises(ProtocolError, match="frame_too_large: feed of"):
        TO_WORKER_CODEC.encode(Feed("s", 1, 0, 0, bytes(FRAME_BYTES_MAX)))
    with pytest.raises(ProtocolError, match="frame_too_large"):
        payloads(FrameBuffer(), (FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_stream_that_ends_within_a_frame_is_torn() -> None:
    frame = TO_WORKER_CODEC.encode(Feed("s", 1, 0, 20, bytes(960)))
    buffer = FrameBuffer()
    assert payloads(buffer, frame + frame[:7]) == [frame[4:]]
    with pytest.raises(ProtocolError, match="torn_frame: the stream ended 7 bytes into a frame"):
        buffer.end()


def test_what_came_before_a_bad_length_is_still_delivered() -> None:
    frame = TO_WORKER_CODEC.encode(Feed("s", 1, 0, 20, b""))
    stream = FrameBuffer().feed(frame + b"\xff\xff\xff\xff")
    assert next(stream) == frame[4:]
    with pytest.raises(ProtocolError, match="frame_too_large"):
        next(stream)


def test_fields_that_a_newer_peer_adds_are_passed_over() -> None:
    body = attrs.asdict(LaneEnded("s", 1, "r", "completed")) | {"mood": "good"}
    assert FROM_WORKER_CODEC.decode(msgspec.msgpack.encode(("lane_ended", body))) == LaneEnded("s", 1, "r", "completed")


@pytest.mark.parametrize(
    "histogram",
    [Durations((1.0,), (1, 2)), Durations((1.0, 2.0), (1, 2, 3))],
)
@pytest.mark.parametrize("wrong", [{"counts": (1,)}, {"counts": (1, -1, 1)}, {"bounds_ms": (2.0, 1.0)}])
def test_a_histogram_that_is_none_does_not_come_in(histogram: Durations, wrong: dict[str, object]) -> None:
    """The page of metrics would break on it, long after."""
    frame = FROM_WORKER_CODEC.encode(Figures(ModelStatistics(unit=histogram)))
    body = msgspec.msgpack.decode(frame[4:])
    body[1]["model"]["unit"] |= wrong
    with pytest.raises(ProtocolError, match="bad_body: figures"):
        FROM_WORKER_CODEC.decode(msgspec.msgpack.encode(body))
