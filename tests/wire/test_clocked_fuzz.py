"""Whatever a client of the demo or of Moshi sends is understood, passed over, or refused with a code of the table."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sphn
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.dialect import Dialect
from adapters.wire.dialects import MINICPMO, MOSHI
from adapters.wire.moshi.encoding import FRAME_SAMPLES, MESSAGE_BYTES_MAX, RATE, MoshiReader
from adapters.wire.problems import Problem
from adapters.wire.schema.errors import CODES
from adapters.wire.seen import Seen
from tests.wire.stories import Story

SECONDS_MAX = 130
"""Of sound in one message: Opus has at most 120 ms a packet, and 64 KiB of Ogg hold about a thousand packets."""


def taken(dialect: Dialect, message: str | bytes, read: Callable[[Any], Any]) -> list[Any]:
    """The steps of a message; none where it is refused. Its state is as it was."""
    state = Story(dialect.make_projection(), dialect.defaults).state
    position = state.position
    try:
        event = read(message)
        steps = [] if event is None else dialect.translate_event(event, Seen.of(state, 7))
    except Problem as problem:
        refused = problem
    else:
        return steps
    finally:
        assert state.position == position
    assert refused.code in CODES
    json.dumps(dialect.problem(refused))
    return []


# -- the demo -----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
SOUND = st.binary(max_size=64).map(lambda data: b64encode(data).decode())
DEMO_FIELDS = st.sampled_from(
    [
        "audio_base64",
        "force_listen",
        "timeout",
        "system_prompt",
        "config",
        "ref_audio_path",
        "ref_audio_base64",
        "tts_ref_audio_base64",
        "frame_base64_list",
        "event_id",
        "type",
    ]
)


@given(
    name=st.sampled_from([*MINICPMO.handlers, "dance"]),
    fields=st.dictionaries(DEMO_FIELDS, JSON | SOUND, max_size=5),
)
def test_messages_of_the_demo(name: str, fields: dict[str, Any]) -> None:
    taken(MINICPMO, json.dumps({"type": name, **fields}), MINICPMO.make_reader())


@pytest.mark.parametrize("depth", [33, 1_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'], ids=["arrays", "objects"])
def test_deep_messages_of_the_demo(depth: int, brackets: str) -> None:
    text = '{"type": "prepare", "config": ' + brackets[:-1] * depth + "1" + brackets[-1] * depth + "}"
    with pytest.raises(Problem) as caught:
        MINICPMO.make_reader()(text)
    assert caught.value.code == "invalid_json"


@given(st.text() | st.binary())
def test_noise_for_the_demo(message: str | bytes) -> None:
    taken(MINICPMO, message, MINICPMO.make_reader())


# -- Moshi --------------------------------------------------------------------------------------------------------


def pages(count: int = 8) -> list[bytes]:
    """A good stream, as its client's writer cuts it: the first holds the headers."""
    writer = sphn.OpusStreamWriter(RATE)
    tone = (0.3 * np.sin(np.arange(FRAME_SAMPLES) * 0.1)).astype(np.float32)
    return [writer.append_pcm(tone) for _ in range(count)]


GOOD = pages()


def _flipped(page: bytes, at: int, bit: int) -> bytes:
    at %= len(page)
    return page[:at] + bytes([page[at] ^ 1 << bit]) + page[at + 1 :]


_PAGE = st.sampled_from(GOOD)
DAMAGED = st.one_of(
    _PAGE,
    st.binary(max_size=200),
    st.builds(lambda page, size: page[: size % len(page)], _PAGE, st.integers(0, 10_000)),
    st.builds(lambda page, size: page[size % len(page) :], _PAGE, st.integers(0, 10_000)),
    st.builds(_flipped, _PAGE, st.integers(0, 10_000), st.integers(0, 7)),
    st.builds(lambda one, other: one + other, _PAGE, _PAGE),
    st.builds(lambda tail: b"OggS\x00" + tail, st.binary(max_size=80)),
    st.builds(lambda head, filler: head + b"OggS" + bytes([filler]) * 60_000, _PAGE, st.integers(0, 255)),
)


@given(
    st.lists(st.tuples(st.sampled_from([b"\x01"] * 12 + [bytes([kind]) for kind in range(11)]), DAMAGED), max_size=12)
)
def test_damaged_streams_for_moshi(messages: list[tuple[bytes, bytes]]) -> None:
    read = MoshiReader()
    for kind, payload in messages:
        for step in taken(MOSHI, kind + payload, read):
            assert kind != b"\x01" or 0 < step.command.samples <= SECONDS_MAX * RATE
    heard = sum(step.command.samples for page in GOOD for step in taken(MOSHI, b"\x01" + page, read))
    assert heard >= 7 * FRAME_SAMPLES, "whatever came before, a new stream is heard"


@given(st.binary(max_size=300), st.integers(0, 255))
def test_noise_for_moshi(tail: bytes, kind: int) -> None:
    taken(MOSHI, bytes([kind]) + tail, MoshiReader())


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, 1_000_000])
@pytest.mark.parametrize("page", [b"", b"OggS\0\2" + bytes(20) + b"\xff" * 256], ids=["zeros", "a huge page"])
def test_huge_messages_for_moshi(size: int, page: bytes) -> None:
    assert taken(MOSHI, b"\x01" + page + bytes(size - 1 - len(page)), MoshiReader()) == []
