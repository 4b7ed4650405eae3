"""Moshi's codec at the wire's edge: what a cut throws away, and a stream that begins anew in the middle of another."""

from __future__ import annotations

import numpy as np
import sphn

from adapters.wire.moshi.encoding import FRAME_SAMPLES, RATE, MoshiEncoder, MoshiReader
from adapters.wire.moshi.projection import AUDIO, CUT, SILENCE
from core.ports.projection import DELTA, LIVE, Frame

LOUD = np.full(FRAME_SAMPLES // 2, 20_000, "<i2")
LOUD[::2] = -20_000


def frame(number: int, payload: dict[str, object]) -> Frame:
    return Frame(number, number, 1, DELTA if payload["type"] == AUDIO else LIVE, payload, "r")


def test_half_a_frame_that_is_held_back_dies_with_its_cut() -> None:
    for cut in (False, True):
        encoder, reader = MoshiEncoder(), sphn.OpusStreamReader(RATE)
        assert encoder.frame(frame(1, {"type": AUDIO}), LOUD.tobytes()) == b"", "less than a frame"
        if cut:
            assert encoder.frame(frame(2, {"type": CUT}), None) == b""
        message = encoder.frame(frame(3, {"type": SILENCE, "ms": 400}), None)
        heard = np.asarray(reader.append_bytes(message[1:]))
        assert len(heard)
        assert (float(np.abs(heard).max()) < 0.01) is cut


def test_a_new_stream_is_read_though_the_last_one_broke_off_in_a_page() -> None:
    def pages() -> list[bytes]:
        writer = sphn.OpusStreamWriter(RATE)
        return [writer.append_pcm(np.zeros(FRAME_SAMPLES, np.float32)) for _ in range(10)]

    reader, first = MoshiReader(), b"".join(pages())
    reader(b"\x01" + first[: len(first) - 7])
    events = [reader(b"\x01" + page) for page in pages()]
    samples = sum(len(event["pcm"]) // 2 for event in events if event is not None)
    assert samples >= 8 * FRAME_SAMPLES
