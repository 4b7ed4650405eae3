"""Audio at the wire's edge: strict checks, bit-exact pass-through, conversion that begins anew with each response."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.audio import OutputEncoder, decode_audio, loudness
from adapters.wire.problems import Problem
from adapters.wire.schema.audio import ENCODING_NAMES, SAMPLE_BYTES
from core.session.config import INPUT_ENCODINGS, OUTPUT_ENCODINGS, AudioFormat
from gpu_runtime import pcm


def tone(rate: int, hz: float = 1_000.0, seconds: float = 1.0) -> np.ndarray:
    return (10_000 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


@pytest.mark.parametrize(
    ("value", "encoding", "says"),
    [
        ("not base64!", "pcm16", "not base64"),
        ("AAA", "pcm16", "not base64"),
        ("AAAA\n", "pcm16", "not base64"),
        ("ÄÄÄÄ", "pcm16", "not base64"),
        (base64.b64encode(b"abc").decode(), "pcm16", "3 bytes"),
        (base64.b64encode(b"abcdef").decode(), "pcm_f32le", "6 bytes"),
        (base64.b64encode(struct.pack("<f", float("nan"))).decode(), "pcm_f32le", "not numbers"),
        (base64.b64encode(struct.pack("<f", float("inf"))).decode(), "pcm_f32le", "not numbers"),
    ],
)
def test_bad_audio_is_refused_by_name(value: str, encoding: str, says: str) -> None:
    with pytest.raises(Problem, match=says) as caught:
        decode_audio(value, AudioFormat(encoding), "audio")
    assert (caught.value.code, caught.value.param) == ("bad_audio", "audio")


@given(st.binary(max_size=64), st.sampled_from([("pcm16", 2), ("pcm_f32le", 4), ("g711_ulaw", 1)]))
def test_good_audio_is_kept_as_it_came(data: bytes, form: tuple[str, int]) -> None:
    encoding, width = form
    data = data[: len(data) // width * width]
    if encoding == "pcm_f32le":
        data = np.nan_to_num(np.frombuffer(data, "<f4"), nan=0, posinf=0, neginf=0).tobytes()
    assert decode_audio(base64.b64encode(data).decode(), AudioFormat(encoding), "audio") == (data, len(data) // width)


@given(st.lists(st.binary(max_size=40).map(lambda data: data[: len(data) // 2 * 2]), max_size=5))
def test_without_conversion_not_a_bit_changes(bodies: list[bytes]) -> None:
    encoder = OutputEncoder()
    assert [encoder.encode("r", body, 24_000, AudioFormat()) for body in bodies] == bodies


def test_each_response_begins_with_a_filter_of_its_own() -> None:
    body = tone(24_000).astype("<i2").tobytes()
    encoder, target = OutputEncoder(), AudioFormat("pcm16", 16_000)
    first = encoder.encode("a", body, 24_000, target)
    assert encoder.encode("b", body, 24_000, target) == first
    assert encoder.encode("b", body, 24_000, target) != first


def test_a_response_keeps_the_format_with_which_it_began() -> None:
    encoder = OutputEncoder()
    assert len(encoder.encode("a", b"\0" * 4_800, 24_000, AudioFormat())) == 4_800
    assert len(encoder.encode("a", b"\0" * 4_800, 24_000, AudioFormat("g711_ulaw", 8_000))) == 4_800


def test_floats_are_the_samples_over_full_scale() -> None:
    body = np.array([0, 16_384, -32_768], "<i2").tobytes()
    made = OutputEncoder().encode("a", body, 24_000, AudioFormat("pcm_f32le"))
    assert np.frombuffer(made, "<f4").tolist() == [0.0, 0.5, -1.0]


@pytest.mark.parametrize("encoding", ["g711_ulaw", "g711_alaw"])
def test_what_ears_read_is_written_as_it_was(encoding: str) -> None:
    codes = bytes(set(range(256)) - ({0x7F} if encoding == "g711_ulaw" else set()))  # 0x7F is mu-law's second zero
    heard = pcm.decode(codes, AudioFormat(encoding, 8_000))
    body = (heard * 32_768).astype("<i2").tobytes()
    assert OutputEncoder().encode("a", body, 8_000, AudioFormat(encoding, 8_000)) == codes


def test_wire_ears_and_log_know_the_same_encodings() -> None:
    assert SAMPLE_BYTES == pcm.SAMPLE_BYTES
    assert set(SAMPLE_BYTES) == set(INPUT_ENCODINGS) == set(OUTPUT_ENCODINGS) == set(ENCODING_NAMES.values())


@pytest.mark.parametrize(
    ("encoding", "pairs"),
    [
        # Values of the CCITT tables: full scale, small ones, and both sides of zero.
        ("g711_ulaw", {0: 0xFF, -1: 0x7E, 8: 0xFE, -8: 0x7E, 32_767: 0x80, -32_768: 0x00, 1_000: 0xCE, -1_000: 0x4E}),
        ("g711_alaw", {0: 0xD5, -1: 0x55, 8: 0xD5, -8: 0x55, 32_767: 0xAA, -32_768: 0x2A, 1_000: 0xFA, -1_000: 0x7A}),
    ],
)
def test_telephone_encodings(encoding: str, pairs: dict[int, int]) -> None:
    body = np.array(list(pairs), "<i2").tobytes()
    made = OutputEncoder().encode("a", body, 8_000, AudioFormat(encoding, 8_000))
    assert list(made) == list(pairs.values())


@pytest.mark.parametrize("encoding", ["pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw"])
def test_loudness_is_the_same_in_every_encoding(encoding: str) -> None:
    quiet, loud = tone(8_000) * np.float32(0.005), tone(8_000)
    encoder = OutputEncoder()
    for samples, rms in ((loud, 10_000 / 2**0.5 / 32_768), (quiet, 50 / 2**0.5 / 32_768)):
        pcm = np.rint(samples).astype("<i2").tobytes()
        data = encoder.encode(None, pcm, 8_000, AudioFormat(encoding, 8_000))
        assert loudness(data, AudioFormat(encoding, 8_000)) == pytest.approx(
            rms, rel=0.06 if encoding != "g711_alaw" else 0.2
        )
    assert loudness(b"", AudioFormat(encoding)) == 0.0


@pytest.mark.parametrize("encoding", ["pcm16", "g711_ulaw", "g711_alaw"])
def test_what_a_filter_makes_louder_than_full_scale_does_not_turn_over(encoding: str) -> None:
    """A filter overshoots at an edge; the sample there is the loudest that there is, not one of the other sign."""
    body = np.repeat(np.array([32_767, -32_768] * 20, "<i2"), 240).tobytes()
    exact = np.frombuffer(OutputEncoder().encode("a", body, 24_000, AudioFormat("pcm_f32le", 16_000)), "<f4")
    assert np.abs(exact).max() > 1.0, "it does overshoot"
    data = OutputEncoder().encode("a", body, 24_000, AudioFormat(encoding, 16_000))
    written = pcm.decode(data, AudioFormat(encoding, 16_000))
    assert np.abs(written - np.clip(exact, -1, 1)).max() < 0.04


def test_nothing_is_louder_than_full_scale() -> None:
    assert loudness(np.full(100, 5.0, "<f4").tobytes(), AudioFormat("pcm_f32le")) == 1.0
