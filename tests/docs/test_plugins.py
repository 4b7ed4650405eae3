"""The model on the page about models is found, answers what was said, and yields."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.discovery import find_loader, model_names
from gpu_runtime.plugin import ModelUnavailable
from tests.server import servers
from tests.server.servers import open_test_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"


def block(head: str) -> str:
    """The code block that begins with this comment."""
    found = re.search(rf"^```\w+\n(# {re.escape(head)}.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its module, installed as the page says."""
    project = tomllib.loads(block("echo/pyproject.toml"))
    (tmp_path / "duologue_echo.py").write_text(block("echo/duologue_echo.py"))
    info = tmp_path / "duologue_echo-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: duologue-echo\nVersion: 0.1\n")
    points = project["project"]["entry-points"]
    lines = [
        line for group, names in points.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("duologue_echo")
    sys.modules.pop("duologue_echo")


def answers(seen: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """(status, bytes of sound in base64, text) of each answer that ended."""
    found, sound, text = [], 0, ""
    for event in seen:
        if event["type"] == "response.output_audio.delta":
            sound += len(event["delta"])
        elif event["type"] == "response.output_audio_transcript.delta":
            text += event["delta"]
        elif event["type"] == "response.done":
            found.append((event["response"]["status"], sound, text))
            sound, text = 0, ""
    return found


def test_it_is_found_and_loads(echo: Any) -> None:
    assert "echo" in model_names()
    model = find_loader("echo")({"loud": 0.01}, lambda message: None, lambda what, done: None)
    assert model.capabilities.model == "echo"
    model.close()
    with pytest.raises(ModelUnavailable, match="there is: loud"):
        find_loader("echo")({"quiet": 1}, lambda message: None, lambda what, done: None)


async def test_it_plays_back_what_was_said_and_yields(echo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "machine", lambda wall_ns: echo.Echo(0.02))
    async with open_test_server() as server, server.connect() as client:
        await client.until("session.created")
        await client.say(400)
        await client.until("response.done")
        await client.say(6_000)
        await client.until("response.output_audio.delta")
        await client.say(2_000)
        await client.until("response.done")
        await client.until("response.done")
        first, second, third = answers(client.seen)
        assert first == ("completed", -(-400 * 48 // 3) * 4, "You spoke for 400 ms.")
        assert second[0] == "cancelled"
        assert third[0] == "completed"
        assert third[2] == "You spoke for 2000 ms."


async def test_it_answers_typed_words_and_a_turn_that_the_client_ends(
    echo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "machine", lambda wall_ns: echo.Echo(0.02))
    async with open_test_server() as server, server.connect() as client:
        words = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        await client.send("conversation.item.create", item=words)
        await client.send("response.create")
        await client.until("response.done")
        audio = {"input": {"turn_detection": None}}
        await client.send("session.update", session={"type": "realtime", "audio": audio})
        await client.until("session.updated")
        await client.say(400)
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        await client.until("response.done")
        typed, ended = answers(client.seen)
        assert typed[::2] == ("completed", "hello")
        assert ended[::2] == ("completed", "You spoke for 1200 ms.")
