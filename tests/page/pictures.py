"""Takes the pictures of the page for docs/pictures: ``python -m tests.page.pictures DIRECTORY`` (needs Chromium)."""

from __future__ import annotations

import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.page.conftest import QUESTIONS, start_browser
from tests.page.fake_server import FakeServer, Stage

RATE = 16_000
STORY = (
    "Once upon a time a small grey cat lived in a house by the sea and every evening it walked down to the harbour to "
    "count the boats and to wait for the fishermen"
)
PLANET = "Mercury is the planet closest to the sun and a year there lasts only eighty eight of our days"
PICTURES = {
    "page-light.png": ((1000, 800), False),
    "page-dark.png": ((1000, 800), True),
    "page-phone.png": ((360, 740), False),
}


def microphone(path: Path) -> Path:
    """Write what the user says: a question, a pause under the answer, a second question over it."""
    parts = []
    for name, pause_s in (("kokoro_af_heart_4", 4.2), ("kokoro_af_heart_7", 10.0)):
        with wave.open(str(QUESTIONS / f"{name}.wav")) as source:
            parts.append(np.frombuffer(source.readframes(source.getnframes()), dtype="<i2"))
        parts.append(np.zeros(int(RATE * pause_s), dtype="<i2"))
    with wave.open(str(path), "wb") as sink:
        sink.setnchannels(1)
        sink.setsampwidth(2)
        sink.setframerate(RATE)
        sink.writeframes(np.concatenate(parts).tobytes())
    return path


async def story(stage: Stage) -> None:
    """A question, an answer that is cut, a second question and its answer."""
    await stage.greet()
    await chunks(stage, 4)
    await stage.listen("item_u1")
    await chunks(stage, 24)
    await stage.hear("item_u1", "Tell me a short story about a cat.")
    await chunks(stage, 3)
    await stage.begin("r1")
    await stage.speak("r1", STORY)
    await chunks(stage, 43)
    await stage.listen("item_u2")
    await stage.send({"type": "overlap.decision", "action": "barge_in", "reason": "question"})
    await stage.finish("r1", "cancelled", "")
    await chunks(stage, 15)
    await stage.hear("item_u2", "Which planet is closest to the sun?")
    await chunks(stage, 3)
    await stage.begin("r2")
    await stage.speak("r2", PLANET)
    await stage.drain()


async def chunks(stage: Stage, count: int) -> None:
    """Let ``count`` tenths of a second of the user's audio pass."""
    for _ in range(count):
        await stage.wait_for("input_audio_buffer.append")


def take(target: Path) -> None:
    """Write all PICTURES to ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        spoken = microphone(Path(scratch) / "microphone.wav")
        for name, (size, dark) in PICTURES.items():
            with ExitStack() as stack:
                server = stack.enter_context(FakeServer(story))
                profile = Path(scratch) / name
                driver = start_browser(server.url, profile=profile, microphone=spoken, size=size, dark=dark)
                stack.callback(driver.quit)
                driver.find_element("css selector", "#start").click()
                while len(driver.find_elements("css selector", ".turn.it")) < 2:
                    time.sleep(0.1)
                time.sleep(1.6)
                driver.save_screenshot(str(target / name))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
