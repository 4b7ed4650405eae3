"""The whole thing: the page in Chromium, a microphone that plays spoken questions, the real server and models.

No step is bound to a time. The fake microphone's file asks the first question; what is said over an answer is said when the
page shows that the answer is heard. On a slow machine everything is later, and nothing else.
"""

from __future__ import annotations

import base64
import re
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.page.conftest import QUESTIONS, OpenBrowser, until
from tests.page.test_browser import Page

pytestmark = [pytest.mark.browser, pytest.mark.models, pytest.mark.realtime]

STORY = QUESTIONS / "kokoro_af_heart_4.wav"
LEAD_S = 1
LIMIT_S = 200.0
"""For each step: beside fifteen busy programs an answer may take a minute to begin."""
SPEAK_UP = """
    const context = new AudioContext(), room = context.createMediaStreamDestination();
    const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (wanted) => {
        context.createMediaStreamSource(await open(wanted)).connect(room);
        await context.resume();
        return room.stream;
    };
    globalThis.say = async (wav) => {
        const sound = context.createBufferSource();
        sound.buffer = await context.decodeAudioData(Uint8Array.from(atob(wav), (byte) => byte.charCodeAt(0)).buffer);
        sound.connect(room);
        sound.start();
    };
"""
"""Into the room in which the microphone stands one may say something more, at any time."""


@pytest.fixture
def microphone(tmp_path: Path) -> Path:
    """Somebody asks for a story, once."""
    path = tmp_path / "microphone.wav"
    with wave.open(str(STORY)) as source, wave.open(str(path), "wb") as sink:
        sink.setparams(source.getparams())
        lead = bytes(LEAD_S * source.getframerate() * source.getsampwidth())
        sink.writeframes(lead + source.readframes(source.getnframes()))
    return path


def questions(page: Page) -> int:
    """How many the page shows, in words."""
    return len(page.texts(".turn.you .heard"))


def is_heard(page: Page) -> bool:
    """Whether some words of the newest answer were heard, and nobody has cut it."""
    script = """
        const newest = [...document.querySelectorAll(".turn.it")].at(-1);
        return newest?.dataset.phase === "cut" ? "" : newest?.querySelector(".heard").textContent
    """
    return len((page.driver.execute_script(script) or "").split()) >= 3


def shows(page: Page, condition: Callable[[Page], object]) -> None:
    """Wait until ``condition`` of the page is true; a failure says what was shown instead."""
    until(lambda: condition(page), LIMIT_S, seen=lambda: page.texts(".turn, #activity, #notice"))


def cuts(page: Page) -> list[tuple[str, str, str]]:
    """(heard, struck out, the line below) of each answer that was cut after some of it was heard. Of a model that is slower
    than its voice all that it had said may have been heard."""
    script = """
        const parts = (turn) => [".heard", "del.unheard", ".foot"].map((part) => turn.querySelector(part).textContent);
        return [...document.querySelectorAll(".turn.it[data-phase=cut]")].map(parts)
    """
    return [(heard, unheard, foot) for heard, unheard, foot in page.driver.execute_script(script) if heard]


def interrupt_in_the_middle(page: Page) -> bool:
    """Press the button if some words of the newest answer were heard and some are still to come; in one step, since a slow
    machine's answer may be heard to the end of what there is between a look and a click."""
    script = """
        const newest = [...document.querySelectorAll(".turn.it")].at(-1);
        const words = (part) => (newest?.querySelector(part).textContent ?? "").trim().split(/\\s+/).length;
        if (words(".heard") < 3 || words(".coming") < 4) return false;
        document.querySelector("#interrupt").click();
        return true
    """
    return bool(page.driver.execute_script(script))


def ask_over_an_answer(page: Page) -> bool:
    """Whether an answer has been cut since; the one that was heard may have come to its end meanwhile."""
    shows(page, is_heard)
    asked = questions(page)
    page.driver.execute_script("say(arguments[0])", base64.b64encode(STORY.read_bytes()).decode())
    shows(page, lambda _: questions(page) > asked)
    return bool(cuts(page))


@pytest.mark.limit(wall_s=900)
def test_it_answers_yields_to_a_second_question_and_answers_that(
    live_server: str, open_browser: OpenBrowser, microphone: Path
) -> None:
    page = Page(open_browser(live_server, microphone=microphone))
    page.driver.execute_script(SPEAK_UP)
    page.click("start")
    shows(page, lambda _: "story" in " ".join(page.texts(".turn.you .heard")).lower())
    shows(page, ask_over_an_answer)
    shows(page, is_heard)
    _, _, foot = cuts(page)[0]
    after = re.fullmatch(r"Cut off after ([\d.]+) s", foot)
    assert after is not None, foot
    assert float(after[1]) > 0.0
    [waited] = page.texts("#latency")
    assert re.fullmatch(r"\d+\.\d\d s", waited), waited
    assert page.notice == ""
    assert page.state == "open"
    assert page.problems() == []


@pytest.mark.limit(wall_s=900)
def test_a_typed_question_is_answered_aloud_and_the_button_cuts(live_server: str, open_browser: OpenBrowser) -> None:
    page = Page(open_browser(live_server, microphone=None))
    page.write("Tell me a short story about a cat.")
    shows(page, interrupt_in_the_middle)
    shows(page, cuts)
    shows(page, lambda _: not page.find("#interrupt").is_enabled())
    [(heard, unheard, _)] = cuts(page)
    assert unheard.strip(), "what was still to come is struck out"
    page.write("What is the capital of France?")
    shows(page, lambda _: len(page.texts(".turn.it")) >= 2)
    shows(page, lambda _: page.phase() == "spoken")
    [(still_heard, still_unheard, _)] = cuts(page)
    assert (still_heard, still_unheard) == (heard, unheard), "what is cut stays cut"
    assert page.problems() == []
