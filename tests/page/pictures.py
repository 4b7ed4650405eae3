"""Takes the pictures of the page for docs/pictures, of a real conversation: ``python -m tests.page.pictures DIRECTORY``.

Needs Chromium, the cascade, and a machine that does little else: the recording that is the microphone waits for nobody.
"""

from __future__ import annotations

import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from adapters.bench.own_server import ServerProcess
from tests.page.conftest import QUESTIONS, running, start_browser, until

RATE = 16_000
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


def take(target: Path) -> None:
    """Write all PICTURES to ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        spoken = microphone(Path(scratch) / "microphone.wav")
        server = stack.enter_context(running(ServerProcess(Path(scratch), ("--model", "cascade"))))
        # The first conversation is for the models only: they are slower the first time.
        for number, name in enumerate([next(iter(PICTURES)), *PICTURES]):
            (size, dark), profile = PICTURES[name], Path(scratch) / str(number)
            driver = start_browser(server.http_url, profile=profile, microphone=spoken, size=size, dark=dark)
            try:
                driver.find_element("css selector", "#start").click()
                until(lambda shown=driver: len(shown.find_elements("css selector", ".turn.it .heard:not(:empty)")) >= 2)
                time.sleep(0.8)
                driver.save_screenshot(str(target / name))
            finally:
                driver.quit()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
