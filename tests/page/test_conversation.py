"""The whole thing: the page in Chromium, a microphone that plays spoken questions, the real server and models.

The microphone is a file and waits for nobody: it asks for a story, lets the answer run for some seconds, and asks the
second question over it. What the page then shows is what was really heard, answered and cut.
"""

from __future__ import annotations

import re
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.page.conftest import QUESTIONS, OpenBrowser, until
from tests.page.test_browser import Page

pytestmark = [pytest.mark.browser, pytest.mark.models, pytest.mark.realtime]

RATE = 16_000
LEAD_S = 1.0
STORY, PLANET = "kokoro_af_heart_4", "kokoro_af_heart_7"
ANSWER_S = 4.5
TAIL_S = 60.0


def speech(name: str) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    with wave.open(str(QUESTIONS / f"{name}.wav")) as source:
        assert (source.getframerate(), source.getnchannels()) == (RATE, 1)
        return np.frombuffer(source.readframes(source.getnframes()), dtype="<i2")


def silence(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.zeros(int(seconds * RATE), dtype="<i2")


def write_microphone(path: Path, *parts: np.ndarray[tuple[int], np.dtype[np.int16]]) -> Path:
    with wave.open(str(path), "wb") as sink:
        sink.setnchannels(1)
        sink.setsampwidth(2)
        sink.setframerate(RATE)
        sink.writeframes(np.concatenate(parts).astype("<i2").tobytes())
    return path


def seconds_cut_after(page: Page) -> float:
    found = re.search(r"([\d.]+) s", " ".join(page.texts(".turn.it .foot")))
    assert found is not None
    return float(found[1])


def test_it_answers_yields_to_a_second_question_and_answers_that(
    live_server: str, open_browser: OpenBrowser, tmp_path: Path
) -> None:
    parts = (silence(LEAD_S), speech(STORY), silence(ANSWER_S), speech(PLANET), silence(TAIL_S))
    microphone = write_microphone(tmp_path / "microphone.wav", *parts)
    page = Page(open_browser(live_server, microphone=microphone))
    page.click("start")

    until(lambda: any("story" in text.lower() for text in page.texts(".turn.you .heard")))
    until(lambda: page.texts(".turn.it .heard"))
    until(lambda: page.driver.find_elements("css selector", ".turn.it[data-phase=cut]"))
    until(lambda: any("planet" in text.lower() for text in page.texts(".turn.you .heard")))
    # On a slow machine the answer begins late, and less of it is heard.
    assert 0.0 < seconds_cut_after(page) < ANSWER_S + 3.0, "it was heard until the second question, and no longer"
    until(lambda: len(page.driver.find_elements("css selector", ".turn.it")) >= 2)
    until(lambda: len(" ".join(page.texts(".turn.it:last-child .heard")).split()) >= 2)

    waited = page.texts("#latency")[0]
    assert re.fullmatch(r"\d+\.\d\d s", waited), waited
    assert page.notice == ""
    assert page.state == "open"
    assert page.problems() == []


def test_a_typed_question_is_answered_aloud_and_the_button_cuts(live_server: str, open_browser: OpenBrowser) -> None:
    page = Page(open_browser(live_server, microphone=None))
    page.write("Tell me a short story about a cat.")
    until(lambda: any(len(text.split()) >= 3 for text in page.texts(".turn.it .heard")))
    page.click("interrupt")
    until(lambda: page.phase() == "cut")
    [heard] = page.texts(".turn.it .heard")
    until(lambda: not page.find("#interrupt").is_enabled())
    assert page.texts(".turn.it .heard") == [heard], "what is cut stays cut"
    page.write("What is the capital of France?")
    until(lambda: len(page.driver.find_elements("css selector", ".turn.it")) >= 2)
    until(lambda: page.phase() == "spoken")
    assert page.problems() == []
