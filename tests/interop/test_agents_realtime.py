"""OpenAI's JavaScript agents SDK, unmodified, in Node, holds its conversations with this server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from adapters.server.settings import ServerSettings
from tests.interop import foreign
from tests.interop.servers import served

pytestmark = [pytest.mark.interop, pytest.mark.needs("node", "npm"), pytest.mark.limit(wall_s=400)]

DRIVER = Path(__file__).with_name("agents_realtime.mjs")


@pytest.fixture(scope="module")
def driver() -> Path:
    """The story teller, where Node finds the SDK beside it."""
    folder = foreign.agents_realtime()
    return Path(shutil.copy(DRIVER, folder / DRIVER.name))


def tell(driver: Path, story: str, port: int, key: str = "sk-none") -> dict[str, dict[str, Any]]:
    """Run one story: what was reported, by step (the last of each name)."""
    url = f"ws://127.0.0.1:{port}/v1/realtime?model=gpt-realtime"
    command = ["node", str(driver), url, story, key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line["step"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_it_connects_configures_speaks_hears_and_closes(driver: Path) -> None:
    with served(answer_units=8, rtf=0.2) as server:
        assert tell(driver, "configure", server.port)["configured"]["instructions"] == "Be kind."
        told = tell(driver, "answer", server.port)
        assert server.is_left(), "its session has ended with its connection"
    answered = told["answered"]
    assert (answered["status"], answered["audioBytes"]) == ("completed", 8 * 200 * 24_000 // 500)
    assert "turn 2" in answered["transcript"]
    assert [role for role, _ in answered["history"]] == ["user", "assistant", "user", "assistant"]
    assert told["typed"]["deltas"] == 3
    assert (told["closed"]["status"], told["closed"]["errors"]) == ("disconnected", [])


def test_it_interrupts_and_truncates(driver: Path) -> None:
    with served(answer_units=200, rtf=0.5) as server:
        told = tell(driver, "interrupt", server.port)
    cut = told["interrupted"]
    assert (cut["status"], cut["reason"]) == ("cancelled", "client_cancelled")
    assert cut["sameItem"]
    assert cut["late"] == 0
    assert cut["interrupted"] >= 1
    assert 0 < cut["audioEndMs"] < 3_000
    assert cut["kept"]
    assert cut["told"].startswith(cut["kept"]), "what its history keeps was heard"
    assert len(cut["kept"]) < len(cut["told"]), "and what was not heard came in no later event"
    assert told["again"]["otherItem"]
    assert told["closed"]["errors"] == []


def test_its_user_speaks_over_the_answer(driver: Path) -> None:
    with served(answer_units=200, long_units=200, rtf=0.5, transcript="a long question") as server:
        told = tell(driver, "speakOver", server.port)
    cut = told["spoken over"]
    assert (cut["status"], cut["reason"]) == ("cancelled", "turn_detected")
    assert cut["sameItem"]
    assert told["closed"]["errors"] == []


def test_it_runs_a_function_that_the_model_calls_and_goes_on(driver: Path) -> None:
    with served(answer_units=8, rtf=0.2) as server:
        told = tell(driver, "callFunction", server.port)
    called = told["called"]
    assert called["executed"] == [{"text": "call=look_up"}]
    assert called["output"] == ["message", "function_call"]
    assert "got it is 42" in called["transcript"]
    assert ["function_call", "completed", "it is 42"] in called["history"]
    assert told["closed"]["errors"] == []


def test_a_cancel_with_nothing_to_cancel_is_told_and_survived(driver: Path) -> None:
    with served(answer_units=4, rtf=0.2) as server:
        told = tell(driver, "nothingToCancel", server.port)
    assert told["lived"]["status"] == "completed"
    assert told["closed"]["errors"] == ["response_cancel_not_active"]


def test_it_brings_its_key(driver: Path) -> None:
    settings = ServerSettings(port=0, model="scripted", api_keys=("sk-right",))
    with served(settings, answer_units=4, rtf=0.2) as server:
        assert "connected" in tell(driver, "configure", server.port, "sk-right")
        with pytest.raises(AssertionError, match="401"):
            tell(driver, "configure", server.port, "sk-wrong")
