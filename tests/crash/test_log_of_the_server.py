"""Everything that a server prints through whole conversations and every kind of crash holds no word that was said, no sound,
no key and no token, at its most talkative level."""

from __future__ import annotations

import base64
import json
import re
import sys
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from adapters.bench.own_server import ServerProcess, launch, model_flags
from adapters.client.credentials import ReconnectPolicy
from adapters.client.errors import ClientError
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.server.conversation import Conversation
from adapters.wire.schema import names
from core.actors.session import Session
from store.sql.sql_store import SqlStore
from tests.crash import faulty_server as faults
from tests.crash.cluster import MODEL, QUESTION
from tests.store.backends import in_real_time_for

pytestmark = pytest.mark.crash

KEY = "sk-petrichor"
TYPED, SPOKEN, INSTRUCTED, TOOL_SAID = "marzipan", "tulips", "obelisk", "sextant"
QUICK = ReconnectPolicy(attempts_max=200, initial_ms=20, delay_ms_max=200)
SOUND_CHARS = 64


class Eavesdropper:
    """Collects whatever must not be printed."""

    def __init__(self) -> None:
        self.secrets = {KEY, TYPED, SPOKEN, INSTRUCTED, TOOL_SAID, _in_base64(QUESTION)}
        self.audio: list[bytes] = []

    async def listen(self, client: DuplexClient, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        events = client.events()
        task_status.started()
        with suppress(ClientError):
            async for event in events:
                if event.audio:
                    self.audio.append(event.audio)
                    self.secrets.add(_in_base64(event.audio))
                with suppress(ClientError):
                    self.secrets.add(client.credentials().resume_token)


def _in_base64(sound: bytes) -> str:
    """The beginning of a chunk as it stands in a frame."""
    return base64.b64encode(sound).decode()[:SOUND_CHARS]


def _client(server: ServerProcess, key: str, **options: Any) -> DuplexClient:
    return DuplexClient(server.url, api_key=key, reconnect=QUICK, **options)


def _ephemeral_key(server: ServerProcess) -> str:
    body = json.dumps({"session": {"type": "realtime", "instructions": INSTRUCTED}}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.http_url}/v1/realtime/client_secrets", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["value"])


async def _converse(server: ServerProcess, spy: Eavesdropper) -> None:
    """Speak, type, answer for a tool, send nonsense, interrupt, move to another connection."""
    config = cascade_session_config(manual_turns=True, instructions=f"You are an {INSTRUCTED}.")
    async with trio.open_nursery() as nursery:
        async with _client(server, KEY, config=config) as client:
            await nursery.start(spy.listen, client)
            await client.stream_pcm(QUESTION, chunk_ms=50, realtime=False)
            await client.commit(create_response=True)
            heard = await client.wait_for(names.RESPONSE_DONE, timeout_s=60)
            assert SPOKEN in json.dumps(heard.payload), "the answer repeats what it understood"
            item = {"type": "function_call_output", "call_id": "call_1", "output": TOOL_SAID}
            await client.send({"type": names.ITEM_CREATE, "item": item})
            await client.send({"type": f"no.such.event.{TYPED}", "text": TYPED})
            await client.send({"type": names.AUDIO_APPEND, "audio": TYPED * 10})
            await client.send_text(f"a long {TYPED} please")
            await client.wait_for(names.AUDIO_DELTA, timeout_s=60)
            await client.barge_in()
            await client.wait_for(names.RESPONSE_DONE, timeout_s=60)
            credentials = await client.detach()
        async with _client(server, KEY, resume=credentials) as client:
            await nursery.start(spy.listen, client)
            await client.send_text(TYPED)
            await client.wait_for(names.RESPONSE_DONE, timeout_s=60)
        nursery.cancel_scope.cancel()


async def _crash(server: ServerProcess, spy: Eavesdropper, key: str, fault: str) -> None:
    """Say the word, and wait until it has had its effect."""
    config = cascade_session_config(manual_turns=True)
    with suppress(ClientError):
        async with _client(server, key, config=config) as client, trio.open_nursery() as nursery:
            await nursery.start(spy.listen, client)
            printed = server.words.stat().st_size
            await client.send_text(f"{TYPED} {fault}", create_response=False)
            with trio.fail_after(60):
                while server.words.stat().st_size == printed and server.alive:
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
            if fault in (faults.WRITER, faults.NO_WRITER, faults.PROCESS):
                await client.detach(timeout_s=0.1)  # what was said is sent again, and has its effect again


@pytest.mark.limit(wall_s=240)
@in_real_time_for(220)
async def test_nothing_that_was_said_and_no_secret_is_printed(tmp_path: Path) -> None:
    options = {**MODEL, "transcript": SPOKEN + " {segment}"}
    flags = ("--model", "scripted", *model_flags(options), "--api-key", KEY, "--log-level", "debug", "--drain-s", "1")
    program = (sys.executable, faults.__file__)
    server = ServerProcess(tmp_path, flags, launch=partial(launch, program=program))
    spy = Eavesdropper()
    server.start()
    try:
        await server.ready()
        ephemeral = await trio.to_thread.run_sync(_ephemeral_key, server)
        spy.secrets.add(ephemeral)
        await _converse(server, spy)
        for fault in (faults.CONNECTION, faults.LIBRARY, faults.SESSION, faults.WRITER):
            await _crash(server, spy, ephemeral, fault)
        await server.ready()
        await _crash(server, spy, ephemeral, faults.NO_WRITER)
        assert server.process is not None
        assert await trio.to_thread.run_sync(server.process.wait, 60) == 1
        assert re.search(r"\nError: .*log\.sqlite3: the store's writer has ended by a fault", server.last_words)
        server.start()
        await server.ready()
        await _crash(server, spy, KEY, faults.PROCESS)
        assert await trio.to_thread.run_sync(server.process.wait, 60) == 1
    finally:
        if server.alive:
            server.kill()
    printed = server.words.read_text()
    for trace in (
        "a connection failed: ",
        "during reset",
        " crashed: ",
        "the store's writer tripped: ",
        "in a row, and ends",
        "the server ended by",
    ):
        assert trace in printed, f"the crash was not logged: {trace}"
    assert "in faulty_carry_out" in printed, "a crash is told with its frames"
    assert len(spy.secrets) > 20, "keys, tokens, words, and the sounds of the answers"
    assert [secret for secret in sorted(spy.secrets) if secret in printed] == []
    raw = server.words.read_bytes()
    assert not any(sound[:SOUND_CHARS] in raw or repr(sound[:16])[2:-1] in printed for sound in [QUESTION, *spy.audio])


def test_the_faults_are_those_of_the_child_alone() -> None:
    """Importing them for their names once broke every server of the tests that came after."""
    methods = (Conversation._carry_out, Session._dispatch, SqlStore._execute)
    assert {method.__module__.partition(".")[0] for method in methods} == {"adapters", "core", "store"}
