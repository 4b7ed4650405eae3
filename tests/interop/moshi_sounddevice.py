"""Stands in for ``sounddevice`` under Moshi's own client: a microphone that hears a tone and then silence, a loudspeaker that
writes what it plays to a file. Both call back every 80 ms from a thread of their own, as PortAudio does."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import Any

import numpy as np

SPEAKS = [range(*map(int, span.split("-"))) for span in os.environ.get("DUOLOGUE_TALK_SPEAKS", "0-6").split(",")]
"""The frames in which its user speaks."""
FRAMES = int(os.environ.get("DUOLOGUE_TALK_FRAMES", "60"))
FRAME_S = 0.08


class _Stream:
    def __init__(self, samplerate: float, channels: int, blocksize: int, callback: Any) -> None:
        self.rate, self.channels, self.size, self.callback = samplerate, channels, blocksize, callback
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> _Stream:
        self.thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stopped.set()
        self.thread.join()

    def run(self) -> None:
        due = time.monotonic()
        frame = 0
        while not self.stopped.wait(max(0.0, due - time.monotonic())):
            self.frame(frame)
            frame, due = frame + 1, due + FRAME_S


class InputStream(_Stream):
    """The microphone. It ends the program when it has said everything."""

    def frame(self, number: int) -> None:
        if number >= FRAMES:  # silent already, so that its last word is not lost in leaving
            if number == FRAMES + 5:
                os.kill(os.getpid(), signal.SIGINT)  # as its user does
            return
        loud = [0.3 * math.sin(i * 0.3) if any(number in span for span in SPEAKS) else 0.0 for i in range(self.size)]
        self.callback(np.array(loud, np.float32)[:, None], self.size, None, None)


class OutputStream(_Stream):
    """The loudspeaker."""

    def frame(self, number: int) -> None:
        played = np.zeros((self.size, self.channels), np.float32)
        self.callback(played, self.size, None, None)
        with open(os.environ["DUOLOGUE_PLAYED"], "ab") as file:
            file.write(played.tobytes())
