"""The page in Firefox: the microphone is heard at 24 kHz, an answer plays, a cut silences it and is acknowledged."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.page import firefox
from tests.page.conftest import until
from tests.page.fake_server import FakeServer, Stage, Story

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not firefox.is_here(), reason="firefox or pulseaudio is not here: apt-get install firefox-esr pulseaudio"
    ),
]

WORDS = " ".join(
    ["Once upon a time a small grey cat lived in a house by the sea and it was never late for dinner"] * 15
)
"""60 s: beside busy programs a page may hear of its player seldom, and acknowledge four seconds only twice."""
WATCH_LATENCY = """(globalThis.latencyAsked = 0, Object.defineProperty(AudioContext.prototype, 'outputLatency', {
    get() { globalThis.latencyAsked += 1; return 0.01; } }), 0)"""
TONE_HZ_MIN, TONE_HZ_MAX = 200, 2_000


async def story(stage: Stage) -> None:
    await stage.greet()
    for _ in range(15):
        await stage.wait_for("input_audio_buffer.append")
    await stage.hear("item_u1", "Tell me a story.")
    await stage.begin("r1")
    await stage.speak("r1", WORDS)
    await stage.wait_for("barge_in")
    await stage.finish("r1", "cancelled", "Once")
    await stage.drain()


def told(page: firefox.Firefox, server: FakeServer) -> str:
    """Where a test stands that waits in vain."""
    came = Counter(event["type"] for event in server.received)
    shown = "['#state', '#activity', '#notice'].map(s => document.querySelector(s).textContent.trim())"
    return f"the server got {dict(came)}; the page shows {page.evaluate(shown)}"


def test_it_hears_speaks_and_is_cut(tell: Callable[[Story], FakeServer], tmp_path: Path) -> None:
    pytest.importorskip("websocket", reason="selenium is not here: pip install selenium")
    server = tell(story)
    with firefox.Firefox(tmp_path / "profile") as page:
        page.open(server.url)
        page.evaluate(WATCH_LATENCY)
        page.evaluate("document.querySelector('#start').click()")
        until(lambda: len(server.of_type("playback.ack")) >= 3, seen=lambda: told(page, server))
        page.evaluate("document.querySelector('#interrupt').click()")
        until(lambda: page.evaluate("document.querySelector('.turn.it').dataset.phase") == "cut")
        until(lambda: server.of_type("barge_in"))
        order = [event["type"] for event in server.of_type("playback.ack", "barge_in")]
        assert order[-1] == "barge_in"
        heard, unheard = page.evaluate(
            "['.turn.it .heard', '.turn.it .unheard'].map(s => document.querySelector(s).textContent)"
        )
        assert heard + unheard == WORDS
        assert heard != ""
        assert page.evaluate("document.querySelector('#notice').hidden") is True
        assert page.evaluate("globalThis.latencyAsked") == 0, "Firefox may stand still for good when it is asked"

    audio = b"".join(base64.b64decode(event["audio"]) for event in server.of_type("input_audio_buffer.append"))
    samples = np.frombuffer(audio, dtype="<i2")[4_800:28_800].astype(float)
    tone_hz = np.argmax(np.abs(np.fft.rfft(samples))) * 24_000 / len(samples)
    assert TONE_HZ_MIN < tone_hz < TONE_HZ_MAX, "the fake microphone's tone came through"
