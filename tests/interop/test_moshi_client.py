"""``python -m moshi.client``, unmodified but for its sound card, holds a conversation with this server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from adapters.server.settings import ServerSettings
from tests.interop import foreign
from tests.interop.servers import Served, served

pytestmark = [pytest.mark.interop, pytest.mark.needs("sphn"), pytest.mark.limit(wall_s=400)]

RATE = 24_000


Sound = np.ndarray[tuple[int], np.dtype[np.float32]]


def talk(server: Served, folder: Path, frames: int, *, speaks: str = "0-6", query: str = "") -> tuple[str, Sound]:
    """Run the client for so many frames of 80 ms, its user speaking in those of ``speaks``: what it printed, what it
    played."""
    stub = folder / "stub"
    stub.mkdir()
    shutil.copy(Path(__file__).with_name("moshi_sounddevice.py"), stub / "sounddevice.py")
    played = folder / "played.f32"
    played.touch()
    paths = (str(stub), str(foreign.moshi_client()))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "DUOLOGUE_PLAYED": str(played),
        "DUOLOGUE_TALK_FRAMES": str(frames),
        "DUOLOGUE_TALK_SPEAKS": speaks,
    }
    where = ["--host", "127.0.0.1", "--port", str(server.port)]
    if query:  # the client itself knows no prompts; it puts the path behind its URL, here into a parameter
        where = ["--url", f"ws://127.0.0.1:{server.port}/api/chat?{query}&behind="]
    command = [sys.executable, "-m", "moshi.client", *where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -2, 130), done.stdout + done.stderr
    return done.stdout + done.stderr, np.fromfile(played, np.float32)


def loud(sound: Sound) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of its frames of 20 ms sound."""
    frames = sound[: len(sound) // 480 * 480].reshape(-1, 480)
    sounding: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.sqrt((frames**2).mean(axis=1)) > 0.01
    return sounding


def loud_ms(sound: Sound) -> float:
    return 20.0 * float(loud(sound).sum())


def test_it_connects_speaks_hears_the_answer_and_leaves(tmp_path: Path) -> None:
    with served(answer_units=10, rtf=0.2) as server:
        said, played = talk(server, tmp_path, 70)
        assert server.is_left(), "the one session of its own ended with it"
    words = "".join(said.split())
    assert "turn1" in words
    assert "a1w3" in words
    assert "Lost connection" not in said, said
    assert loud_ms(played) == pytest.approx(2_000, abs=200)


def test_its_user_speaks_over_the_answer_which_falls_silent(tmp_path: Path) -> None:
    """To interrupt is all that this protocol has: a cut with nothing to cut, or a truncate, has no word in it."""
    script = {"long_units": 200, "answer_units": 200, "rtf": 0.2, "transcript": "a long question"}
    with served(**script) as server:
        said, played = talk(server, tmp_path, 110, speaks="0-6,45-65")
        assert server.is_left()
        assert server.figure('duologue_cuts_total{reason="turn_detected"}') == 1
        assert server.figure('duologue_responses_total{status="cancelled"}') >= 1
    words = "".join(said.split())
    assert "1alongquestion" in words
    assert words.count("alongquestion") >= 2, "the answer to what was spoken over the first one"
    assert "Lost connection" not in said, said
    sounding = loud(played)
    (first,) = np.flatnonzero(sounding)[:1]
    quiet = np.convolve(~sounding[first:], np.ones(15), "valid")
    assert quiet.max() == 15, "300 ms of silence after it was cut, in what would have been 40 s of sound"


def test_it_is_configured_by_its_url(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, model="scripted")
    seen: list[tuple[str, str]] = []
    with served(settings, answer_units=4, rtf=0.2) as server:
        watch = threading.Thread(target=lambda: seen.extend(prompts(server)))
        watch.start()
        said, _ = talk(server, tmp_path, 60, query="text_prompt=Be%20kind.&voice_prompt=tone.pt")
        watch.join()
    assert seen == [("Be kind.", "tone")], said
    assert "turn1" in "".join(said.split())


def prompts(server: Served) -> list[tuple[str, str]]:
    """Of the first session that there is, as soon as there is one."""
    until = time.monotonic() + 100
    while not server.supervisor.sessions and time.monotonic() < until:
        time.sleep(0.01)
    return [(one.state.config.instructions, one.state.config.voice) for one in server.supervisor.sessions.values()]
