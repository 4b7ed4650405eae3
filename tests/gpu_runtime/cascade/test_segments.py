from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.models.cascade.parts import FRAME_SAMPLES
from gpu_runtime.models.cascade.segments import (
    FRAME_MS,
    Began,
    Ended,
    Finding,
    Frame,
    GoesOn,
    Pause,
    Resumed,
    Segmenter,
    SegmentRules,
)


def listen(pattern: str, rules: SegmentRules | None = None) -> list[tuple[int, Finding]]:
    """``#`` is a loud frame, ``.`` a quiet one; findings with the number of the frame that made them."""
    segmenter = Segmenter(rules or SegmentRules())
    found = []
    for number, mark in enumerate(pattern):
        frame = Frame(
            0.9 if mark == "#" else 0.1, (number + 1) * FRAME_SAMPLES, number * FRAME_MS, (number + 1) * FRAME_MS
        )
        found += [(number, finding) for finding in segmenter.push(frame)]
    return found


def kinds(found: list[tuple[int, Finding]]) -> list[str]:
    return [type(finding).__name__ for _, finding in found if not isinstance(finding, GoesOn)]


def test_a_turn_begins_pauses_and_ends() -> None:
    found = listen("..####" + "." * 12)
    assert kinds(found) == ["Began", "Pause", "Ended"]
    began = next(finding for _, finding in found if isinstance(finding, Began))
    assert began.first.start_ms == 2 * FRAME_MS
    number, ended = next((n, finding) for n, finding in found if isinstance(finding, Ended))
    assert ended.last.end_ms == 6 * FRAME_MS
    assert number == 5 + 320 // FRAME_MS
    assert ended.voiced_ms == 4 * FRAME_MS


def test_a_click_is_no_turn() -> None:
    assert listen("..##......##....#..#..#....") == []


def test_an_onset_may_have_small_gaps() -> None:
    assert kinds(listen("#.#.#" + "." * 12)) == ["Began", "Pause", "Ended"]
    assert kinds(listen("#...#...#" + "." * 12)) == []


def test_speech_that_goes_on_takes_the_pause_back() -> None:
    assert kinds(listen("####....###" + "." * 12)) == ["Began", "Pause", "Resumed", "Pause", "Ended"]


def test_a_short_dip_is_no_pause() -> None:
    assert kinds(listen("####..###..###")) == ["Began"]


def test_a_hang_over_below_the_pause_ends_at_once() -> None:
    assert kinds(listen("####..", SegmentRules(silence_ms=32))) == ["Began", "Pause", "Ended"]


def test_speech_goes_on_is_said_every_100_ms() -> None:
    said = [finding.speech_ms for _, finding in listen("#" * 40) if isinstance(finding, GoesOn)]
    assert all(later - earlier == 96 for earlier, later in pairwise(said))
    assert said[0] <= 192
    assert said[-1] >= 40 * FRAME_MS - 96


@given(st.text("#.", max_size=200), st.sampled_from((32, 96, 320, 1_000)))
def test_findings_come_in_a_legal_order(pattern: str, silence_ms: int) -> None:
    legal = {
        "idle": {Began: "speaking"},
        "speaking": {Pause: "paused", GoesOn: "speaking"},
        "paused": {Resumed: "speaking", Ended: "idle"},
    }
    state = "idle"
    for _, finding in listen(pattern, SegmentRules(silence_ms=silence_ms)):
        assert type(finding) in legal[state], (state, finding)
        state = legal[state][type(finding)]
