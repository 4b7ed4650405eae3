"""The listener: nothing is heard that did not come, and every hole is counted once."""

from __future__ import annotations

import io
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.client.player import Player, stereo, wav_bytes

MS = 1_000_000
RATE = 1_000  # one sample a ms: what is played can be read off


def pcm(duration_ms: int, value: int = 7) -> bytes:
    return value.to_bytes(2, "little") * duration_ms


def player(prebuffer_ms: int = 0) -> Player:
    return Player(0, rate=RATE, prebuffer_ms=prebuffer_ms)


def test_an_answer_is_heard_as_time_passes() -> None:
    listener = player()
    listener.feed("a", pcm(100), 50 * MS)
    listener.advance(110 * MS)
    assert listener.played_ms("a") == 60
    assert listener.sounding_id == "a"
    listener.end("a", 120 * MS)
    listener.advance(1_000 * MS)
    assert listener.played_ms("a") == 100
    assert listener.is_idle
    assert listener.timeline_pcm() == bytes(100) + pcm(100)
    (track,) = listener.statistics()
    assert (track.underruns, track.first_sound_ms) == (0, 50)


def test_a_prebuffer_holds_the_first_sound_back() -> None:
    listener = player(prebuffer_ms=30)
    listener.feed("a", pcm(20), 0)
    listener.advance(10 * MS)
    assert listener.played_ms("a") == 0
    listener.feed("a", pcm(20), 10 * MS)
    listener.advance(15 * MS)
    assert listener.played_ms("a") == 5


def test_a_short_answer_sounds_once_it_has_ended() -> None:
    listener = player(prebuffer_ms=500)
    listener.feed("a", pcm(20), 0)
    listener.end("a", 5 * MS)
    listener.advance(100 * MS)
    assert listener.played_ms("a") == 20


def test_running_dry_is_an_underrun_once_more_comes() -> None:
    listener = player(prebuffer_ms=10)
    listener.feed("a", pcm(20), 0)
    listener.feed("a", pcm(5), 50 * MS)
    listener.feed("a", pcm(5), 60 * MS)
    listener.end("a", 80 * MS)
    listener.advance(200 * MS)
    (track,) = listener.statistics()
    assert (track.underruns, track.underrun_ms) == (1, 40)
    assert listener.heard_pcm("a") == pcm(20) + bytes(2 * 40) + pcm(10)


def test_an_end_after_running_dry_is_no_underrun() -> None:
    listener = player()
    listener.feed("a", pcm(20), 0)
    listener.end("a", 50 * MS)
    assert listener.statistics()[0].underruns == 0
    assert listener.is_idle


def test_a_cut_is_silence_from_that_instant() -> None:
    listener = player()
    listener.feed("a", pcm(100), 0)
    assert listener.cut(30 * MS) == 30
    assert not listener.feed("a", pcm(100), 40 * MS)
    listener.feed("b", pcm(10, 9), 50 * MS)
    listener.end("b", 50 * MS)
    listener.advance(100 * MS)
    assert listener.timeline_pcm() == pcm(30) + bytes(2 * 20) + pcm(10, 9)
    assert listener.cut(100 * MS, "a") == 30
    assert [track.was_cut for track in listener.statistics()] == [True, False]


def test_answers_play_one_after_the_other() -> None:
    listener = player()
    listener.feed("a", pcm(20, 1), 0)
    listener.feed("b", pcm(20, 2), 5 * MS)
    listener.end("a", 6 * MS)
    listener.end("b", 6 * MS)
    listener.advance(100 * MS)
    assert listener.timeline_pcm() == pcm(20, 1) + pcm(20, 2)


def test_the_tap_hears_silence_too() -> None:
    listener = player()
    listener.tap = bytearray()
    listener.feed("a", pcm(10), 5 * MS)
    listener.advance(20 * MS)
    assert bytes(listener.tap) == bytes(10) + pcm(10) + bytes(10)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="two bytes"):
        player().feed("a", b"\0", 0)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 80),
        st.sampled_from(["feed", "feed", "feed", "end", "cut", "look"]),
        st.sampled_from("abc"),
        st.integers(0, 60),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 50))
def test_whatever_happens(steps: list[tuple[int, str, str, int]], prebuffer_ms: int) -> None:
    listener = player(prebuffer_ms)
    listener.tap = bytearray()
    now_ms = 0
    before: dict[str, int] = {}
    values = {"a": 1, "b": 2, "c": 3}
    for wait_ms, what, name, size in steps:
        now_ms += wait_ms
        match what:
            case "feed":
                listener.feed(name, pcm(size, values[name]), now_ms * MS)
            case "end":
                listener.end(name, now_ms * MS)
            case "cut":
                listener.cut(now_ms * MS, name)
            case _:
                listener.advance(now_ms * MS)
        for track in listener.statistics():
            assert before.get(track.response_id, 0) <= track.played_ms <= track.received_ms
            before[track.response_id] = track.played_ms
        assert listener.clock_ms == now_ms
        assert len(listener.tap) == now_ms * 2
    timeline = listener.timeline_pcm(now_ms)
    assert timeline == bytes(listener.tap)
    for name, value in values.items():
        assert timeline[::2].count(value) == listener.played_ms(name)
    assert sum(track.played_ms for track in listener.statistics()) <= now_ms


@given(st.integers(0, 50), st.integers(0, 50))
def test_two_sides_of_a_conversation(left_ms: int, right_ms: int) -> None:
    mixed = stereo(pcm(left_ms, 1), pcm(right_ms, 2))
    with wave.open(io.BytesIO(wav_bytes(mixed, RATE, channels=2))) as file:
        assert file.getnframes() == max(left_ms, right_ms)
        assert file.getnchannels() == 2
        frames = file.readframes(100)
    assert frames[0::4].count(1) == left_ms
    assert frames[2::4].count(2) == right_ms
