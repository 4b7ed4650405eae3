"""``python -m moshi.client``, unmodified but for its sound card, holds a conversation with this server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.interop import foreign
from tests.interop.servers import Served, served

pytestmark = [pytest.mark.interop, pytest.mark.needs("sphn"), pytest.mark.limit(wall_s=400)]

RATE = 24_000


def talk(server: Served, folder: Path, frames: int) -> tuple[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Run the client for so many frames of 80 ms: what it printed, what it played."""
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
    }
    command = [sys.executable, "-m", "moshi.client", "--host", "127.0.0.1", "--port", str(server.port)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -2, 130), done.stdout + done.stderr
    return done.stdout + done.stderr, np.fromfile(played, np.float32)


def loud_ms(sound: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    frames = sound[: len(sound) // 480 * 480].reshape(-1, 480)
    return 20.0 * float((np.sqrt((frames**2).mean(axis=1)) > 0.01).sum())


def test_it_connects_speaks_hears_the_answer_and_leaves(tmp_path: Path) -> None:
    with served(answer_units=10, rtf=0.2) as server:
        said, played = talk(server, tmp_path, 70)
        # The one session of its own ended with it.
        for _ in range(50):
            if not server.supervisor.sessions:
                break
            subprocess.run(["sleep", "0.1"], check=True)
        assert not server.supervisor.sessions
    words = "".join(said.split())
    assert "turn1" in words
    assert "a1w3" in words
    assert "Lost connection" not in said, said
    assert loud_ms(played) == pytest.approx(2_000, abs=200)
