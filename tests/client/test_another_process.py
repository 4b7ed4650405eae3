"""A session that one process began and another one goes on with: all that passes between them is a line of text."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import trio

from adapters.client.errors import HandshakeRefused, SessionReplaced
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.wire.schema import names
from tests.interop.servers import Served, served

GO_ON = """
import json, sys, trio
from adapters.client.credentials import ResumeCredentials
from adapters.client.trio_client import DuplexClient

async def main(url, credentials):
    async with DuplexClient(url, resume=credentials) as client:
        audio = b""
        async for response in client.responses():
            async for chunk in response.audio():
                audio += chunk
            break
        await client.send_text("units=2 and now?")
        async for after in client.responses():
            await after.wait_done()
            break
        lost = client.statistics().lost_events
        print(json.dumps([client.session_id, len(audio), response.status, after.transcript, lost]))

trio.run(main, sys.argv[1], ResumeCredentials.from_json(sys.stdin.readline()))
"""
ANSWER_BYTES = 20 * 200 * 24_000 // 500


@pytest.mark.realtime
@pytest.mark.parametrize("leaves", [True, False], ids=["resumes", "takes over"])
def test_another_process_goes_on_in_mid_answer(leaves: bool) -> None:
    async def story(server: Served) -> None:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime"
        async with DuplexClient(url, model="scripted", config=cascade_session_config()) as client:
            await client.send_text("hello")
            heard = 0
            async for response in client.responses():
                async for chunk in response.audio():
                    heard += len(chunk)
                    break
                break
            credentials = await client.detach() if leaves else client.credentials()
            command = [sys.executable, "-c", GO_ON, url]
            run = trio.run_process(command, stdin=f"{credentials.to_json()}\n".encode(), capture_stdout=True)
            ran: subprocess.CompletedProcess[bytes] = await run
            session_id, size, status, after, lost = json.loads(ran.stdout)
            assert (session_id, status, lost) == (credentials.session_id, "completed", 0)
            assert 0 < size <= ANSWER_BYTES - heard
            assert "and now" in after
            if not leaves:  # told so, or too busy to hear it, and then refused as it came back
                with pytest.raises((SessionReplaced, HandshakeRefused)) as caught:
                    await client.wait_for(names.RESPONSE_DONE, timeout_s=5)
                assert getattr(caught.value, "code", "invalid_resume_token") == "invalid_resume_token"

    with served(answer_units=20, rtf=0.5) as server:
        trio.run(story, server)
