"""``python -m tests.specs.record_golden [NAME ...]``: record golden logs of the current version into specs/golden.

Those named, or else those that are not there yet. ``v1`` logs have a chain that says nothing of their records
(core.session.digest, rule 1), ``v2`` logs the first version of the stream; nothing records either any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio
import trio.testing

from adapters.archive.writing import lines_of
from core.ports.store import StoredBatch
from tests import virtual_time
from tests.archive.recordings import record
from tests.server.servers import PNG, Client, Server, open_test_server
from tests.specs.test_golden import GOLDEN, facts_of, replay

TOOL = {"type": "function", "name": "look_up", "description": "Looks things up.", "parameters": {"type": "object"}}


async def _closed_log(server: Server, client: Client) -> Sequence[StoredBatch]:
    """The client's session ends, and nothing more is written to its log."""
    await client.send("session.close")
    await client.closed()
    (session,) = [event["session"]["id"] for event in client.seen if event["type"] == "session.created"]
    await trio.sleep(1)
    return await server.store.read(session, limit=10**6)


async def _parts() -> Sequence[StoredBatch]:
    """Pictures of a camera and of an item, typed words, tools, a call with its result, a call that is cut off."""
    async with (
        open_test_server(answer_units=6, rtf=0.5, call_at_unit=3) as server,
        server.connect("/v1/realtime?duplex=1&model=scripted", 16_000) as client,
    ):
        await client.send("session.update", session={"tools": [TOOL], "max_client_lead_ms": 400})
        await client.send("input_audio_buffer.append", audio="", video_frames=[PNG])
        await client.send("input.text.append", text="call=look_up")
        await client.send("input.commit")
        call = next(
            item for item in (await client.until("response.done"))["response"]["output"] if item["type"] != "message"
        )
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "it is 42"}
        await client.send("conversation.item.create", item=output)
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
        asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and this"}, image]}
        await client.send("conversation.item.create", item=asked)
        await client.send("response.create", response={"tools": [TOOL], "tool_choice": "required"})
        await client.until("response.output_audio.delta")
        await client.send("barge_in")
        await client.until("response.done")
        return await _closed_log(server, client)


def parts() -> Sequence[StoredBatch]:
    """See ``_parts``."""
    return virtual_time.run(_parts)


async def _read_again() -> Sequence[StoredBatch]:
    """A worker dies between a turn's commit and its transcript, and the next one reads that turn. Beside it stands a log
    of a server that did not do so yet (``v1_lost_turn``)."""
    async with (
        open_test_server(answer_units=6, rtf=0.5, hear_ms=300) as server,
        server.connect("/v1/realtime?duplex=1&model=scripted", 16_000) as client,
    ):
        await client.send("session.update", session={"turn_detection": None})
        await client.say()
        await client.send("input.commit")
        await client.until("input_audio_buffer.committed")
        server.supervisor._ports.runtime.kill_worker()  # type: ignore[attr-defined]
        await client.until("response.done")
        await client.say()
        await client.send("input.commit")
        await client.until("response.done")
        return await _closed_log(server, client)


def read_again() -> Sequence[StoredBatch]:
    """See ``_read_again``."""
    return virtual_time.run(_read_again)


async def _openai() -> Sequence[StoredBatch]:
    """OpenAI's dialect: speech with its transcript, a call in an answer that is cut after it, a truncate."""
    async with (
        open_test_server(answer_units=6, rtf=0.5, call_at_unit=1, transcript="call=look_up") as server,
        server.connect("/v1/realtime?model=scripted", 24_000) as client,
    ):
        await client.until("session.created")
        session = client.seen[0]["session"]["id"]
        await client.send("session.update", session={"type": "realtime", "tools": [TOOL]})
        await client.say()
        await client.until("response.function_call_arguments.done")
        delta = await client.until("response.output_audio.delta")
        await client.send("response.cancel")
        await client.send("conversation.item.truncate", item_id=delta["item_id"], content_index=0, audio_end_ms=100)
        await client.until("conversation.item.truncated")
        await client.say()
        await client.until("response.done")
        await client.socket.aclose()
        await trio.sleep(1)
        return await server.store.read(session, limit=10**6)


def openai() -> Sequence[StoredBatch]:
    """See ``_openai``."""
    return virtual_time.run(_openai)


LOGS: dict[str, Callable[[], Sequence[StoredBatch]]] = {
    "v3_duplex": lambda: record()[0],
    "v3_parts": parts,
    "v3_read_again": read_again,
    "v3_openai": openai,
}


def main(names: Sequence[str]) -> None:
    """Write logs and their facts."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    path: Path = GOLDEN / "facts.json"
    facts = json.loads(path.read_text()) if path.exists() else {}
    for name in names or [name for name in LOGS if name not in facts]:
        content = b"".join(line for batch in LOGS[name]() for line in lines_of(batch))
        (GOLDEN / f"{name}.jsonl").write_bytes(content)
        facts[name] = facts_of(replay(content))
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
