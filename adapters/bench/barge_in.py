"""Barge-in by command: from the client's send to the cancelled response.done at the client."""

from __future__ import annotations

import attrs
import trio

from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.wire.schema import names


@attrs.frozen
class BargeIns:
    """Latencies in ms, and audio deltas of a cut answer that came after its end (must be none)."""

    latencies_ms: list[float]
    stale_deltas: int


async def barge_in(url: str, rounds: int, speak_s: float = 0.12) -> BargeIns:
    """Ask for an answer by text, cut it after ``speak_s`` of its arrival, ``rounds`` times in one session."""
    latencies: list[float] = []
    cut: set[str] = set()
    stale = 0
    async with DuplexClient(url, model="scripted", config=cascade_session_config()) as client:
        events = client.events()
        for _ in range(rounds):
            await client.send_text("a long answer please")
            asked = 0.0
            async for event in events:
                response_id = str(event.payload.get("response_id") or event.payload.get("response", {}).get("id"))
                if event.type == names.AUDIO_DELTA:
                    stale += response_id in cut
                    if not asked:
                        await trio.sleep(speak_s)
                        asked = trio.current_time()
                        await client.barge_in()
                elif event.type == names.RESPONSE_DONE:
                    cut.add(response_id)
                    break
            if asked:  # else it ended, or failed, before there was anything to cut
                latencies.append((trio.current_time() - asked) * 1_000)
    return BargeIns(latencies, stale)
