"""Embeddings through a session: those that are none fail one answer of one session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.bench.own_server import ServerProcess, model_flags
from adapters.client.trio_client import DuplexClient
from adapters.wire.schema import names
from core.session import events as e
from gpu_runtime.engines.vllm_random import write_model
from tests.vllm.conftest import START_TIMEOUT_S, launch_with
from tests.vllm.rows_model import ANSWER_TOKENS
from tests.vllm.talks import replayed, until

pytestmark = [pytest.mark.vllm, pytest.mark.realtime, pytest.mark.limit(wall_s=900)]


@pytest.fixture
def rows_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Ready to talk. Its model is found as any plugin is."""
    info = tmp_path / "plugins" / "rows-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rows\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[duologue.models]\nrows = tests.vllm.rows_model:load\n")
    folder = tmp_path / "tiny-llama"
    write_model("tiny-llama", folder)
    flags = ("--drain-s", "0", "--model", "rows", *model_flags({"folder": str(folder)}))
    server = ServerProcess(tmp_path, flags, launch=launch_with(info.parent))
    server.start()
    try:
        server.wait_ready(START_TIMEOUT_S)
        yield server
    finally:
        server.stop()


class Talk:
    """A client that types, and hears text."""

    def __init__(self, connected: DuplexClient) -> None:
        self.client = connected
        self._stream = connected.events()

    async def ask(self, text: str) -> None:
        """Say it; the answer has begun."""
        await self.client.send_text(text)
        await until(self._stream, names.TEXT_DELTA)

    async def end(self) -> tuple[str, str | None]:
        """How the answer ends, and why."""
        done = (await until(self._stream, names.RESPONSE_DONE)).payload["response"]
        return done["status"], (done.get("status_details") or {}).get("reason")

    async def said(self, text: str) -> tuple[str, str | None]:
        """Say it; how the answer ends."""
        await self.client.send_text(text)
        return await self.end()


def client(server: ServerProcess) -> DuplexClient:
    return DuplexClient(server.url, model="rows", config={"type": "realtime", "output_modalities": ["text"]})


async def texts(server: ServerProcess, session: str | None) -> list[str]:
    """Of its answers, in order; no worker was lost meanwhile."""
    replay = await replayed(server, session)
    assert not [record for record in replay.records if isinstance(record.event, e.RuntimeChanged)][1:]
    return [response.text for response in replay.state.responses.values()]


async def test_a_bad_embedding_fails_one_answer_and_the_other_session_talks_on(rows_server: ServerProcess) -> None:
    """Nothing of it was appended: the ill session's other answers are those of the one beside it."""
    complete, bad = ("completed", None), ("failed", "bad_embedding")
    async with client(rows_server) as one, client(rows_server) as other:
        steady, ill = Talk(one), Talk(other)
        await steady.ask("How are you?")
        assert await ill.said("NAN") == bad
        assert await steady.end() == complete
        assert await ill.said("How are you?") == complete
        await steady.ask("And now?")
        assert await ill.said("WIDE") == bad
        assert await steady.end() == complete
        assert await ill.said("And now?") == complete
        sessions = (one.session_id, other.session_id)
    right, beside = [await texts(rows_server, session) for session in sessions]
    assert [len(text.split()) for text in right] == [ANSWER_TOKENS] * 2
    assert right[0] != right[1]
    assert beside == ["", right[0], "", right[1]]
