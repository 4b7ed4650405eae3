"""Takeover: kill -9 of a server in mid-answer, and how long its client waits for the first new event from another one."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import trio

from adapters.bench.own_server import own_server
from adapters.client.credentials import ReconnectPolicy
from adapters.client.errors import ClientError
from adapters.client.frames import DuplexEvent
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient

MODEL = {"unit_ms": "100", "rtf": "0.5", "long_units": "600"}


async def takeover_ms(store_url: str) -> float:
    """Two servers on the store at ``store_url``; the first is killed, its client goes on at the second. Milliseconds from
    the kill to the first numbered event of the new attachment. Raises ServerDidNotStart, ClientError."""
    async with (
        own_server("scripted", MODEL, store_url=store_url) as first,
        own_server("scripted", MODEL, store_url=store_url) as second,
    ):
        config = cascade_session_config(manual_turns=True)
        quick = ReconnectPolicy(initial_ms=10, attempts_max=200, delay_ms_max=100)
        async with DuplexClient(first.url, config=config, reconnect=None) as before:
            await before.send_text("a long answer please")
            async for event in before.events():
                if event.audio:
                    break
            first.signal(signal.SIGKILL)
            killed_at = trio.current_time()
            credentials = before.credentials()
            after = DuplexClient(second.url, resume=credentials, reconnect=quick)
            events = after.events()
            async with after:
                await first_numbered(events)
                taken_ms = (trio.current_time() - killed_at) * 1e3
            with suppress(ClientError):
                await before.close(timeout_s=0.1)
        return taken_ms


async def first_numbered(events: AsyncIterator[DuplexEvent]) -> None:
    """Wait for the first event of the session's stream: what opens an attachment has no number."""
    async for event in events:
        if event.number is not None:
            break
