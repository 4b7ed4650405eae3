"""Sound in every format, through a whole server: what is said is heard at its right time, however it is cut into messages,
and an answer is as long and as loud in each format as the model made it."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from adapters.wire.audio import OutputEncoder
from adapters.wire.schema.audio import SAMPLE_BYTES
from core.session import events as e
from core.session.config import AudioFormat
from gpu_runtime.pcm import decode
from tests.server.servers import Client, Server, open_test_server

PATHS = {"openai": "/v1/realtime", "duplex": "/v1/realtime?duplex=1&model=scripted"}
BOTH = pytest.mark.parametrize("path", list(PATHS.values()), ids=list(PATHS))
LEADS_MS, SPEAKS_MS = 500, 600
UNITS, UNIT_MS = 5, 200


def said(encoding: str, rate: int) -> bytes:
    """Half a second of nothing, a tone, a second of nothing, as that format has them."""
    times = np.arange(SPEAKS_MS * rate // 1000) / rate
    tone = np.rint(8_000 * np.sin(2 * np.pi * 440 * times)).astype("<i2")
    quiet = [np.zeros(ms * rate // 1000, "<i2") for ms in (LEADS_MS, 1_000)]
    pcm = np.concatenate((quiet[0], tone, quiet[1])).tobytes()
    return OutputEncoder().encode("r", pcm, rate, AudioFormat(encoding, rate))


async def configured(client: Client, **audio: Any) -> None:
    await client.until("session.created")
    await client.send("session.update", session={"audio": audio, "turn_detection": {"type": "server_vad"}})
    while not _is(await client.until("session.updated"), audio):
        pass


def _is(event: dict[str, Any], audio: dict[str, Any]) -> bool:
    """Telephone encodings show no rate at their usual one."""
    shown = {side: {"rate": 8_000, **event["session"]["audio"][side]["format"]} for side in audio}
    return all(shown[side] == audio[side]["format"] for side in audio)


@BOTH
@pytest.mark.parametrize(
    ("encoding", "name", "rate"),
    [
        ("pcm16", "audio/pcm", 8_000),
        ("pcm16", "audio/pcm", 11_025),
        ("pcm16", "audio/pcm", 24_000),
        ("pcm16", "audio/pcm", 192_000),
        ("pcm_f32le", "pcm_f32le", 16_000),
        ("pcm_f32le", "pcm_f32le", 44_100),
        ("g711_ulaw", "audio/pcmu", 8_000),
        ("g711_alaw", "audio/pcma", 8_000),
        ("g711_ulaw", "audio/pcmu", 16_000),
    ],
)
async def test_what_is_said_is_heard_in_its_format(path: str, encoding: str, name: str, rate: int) -> None:
    async with open_test_server(answer_units=1) as server, server.connect(path) as client:
        await configured(client, input={"format": {"type": name, "rate": rate}})
        sound, sample = said(encoding, rate), SAMPLE_BYTES[encoding]
        sizes = np.random.default_rng(1).integers(1, rate // 7, 400) * sample  # no chunk is a whole number of ms
        at = 0
        for size in map(int, sizes):
            if at >= len(sound):
                break
            await client.send("input_audio_buffer.append", audio=base64.b64encode(sound[at : at + size]).decode())
            at += size
        began = await client.until("input_audio_buffer.speech_started")
        ended = await client.until("input_audio_buffer.speech_stopped")
        await client.until("response.done")
        padding_ms = 300
        assert began["audio_start_ms"] == pytest.approx(LEADS_MS - padding_ms, abs=40)
        assert ended["audio_end_ms"] == pytest.approx(LEADS_MS + SPEAKS_MS, abs=40)
        assert await logged(server, e.Append) == sound, (
            "not a bit of it was changed on the way to the log and the model"
        )


@BOTH
@pytest.mark.parametrize(
    ("encoding", "name", "rate"),
    [
        ("pcm16", "audio/pcm", 24_000),
        ("pcm16", "audio/pcm", 8_000),
        ("pcm16", "audio/pcm", 48_000),
        ("pcm_f32le", "pcm_f32le", 24_000),
        ("g711_ulaw", "audio/pcmu", 8_000),
        ("g711_alaw", "audio/pcma", 8_000),
    ],
)
async def test_an_answer_is_heard_in_the_format_that_was_asked_for(
    path: str, encoding: str, name: str, rate: int
) -> None:
    async with open_test_server(answer_units=UNITS, unit_ms=UNIT_MS) as server, server.connect(path) as client:
        await configured(client, output={"format": {"type": name, "rate": rate}})
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        await client.send("conversation.item.create", item=item)
        await client.send("response.create")
        await client.until("response.done")
        sound = b"".join(
            base64.b64decode(event["delta"]) for event in client.seen if event["type"] == "response.output_audio.delta"
        )
        made = await logged(server, e.Output)
        heard = decode(sound, AudioFormat(encoding, rate))
        model = np.frombuffer(made, "<i2") / 32_768
        assert len(heard) / rate == pytest.approx(UNITS * UNIT_MS / 1000, abs=0.005)
        assert np.sqrt((heard**2).mean()) == pytest.approx(np.sqrt((model**2).mean()), rel=0.05)
        if (encoding, rate) == ("pcm16", 24_000):
            assert sound == made, "where nothing is to be converted, not a bit changes"


async def logged(server: Server, kind: type[e.Append] | type[e.Output]) -> bytes:
    """All the sound of that kind in the one session's log."""
    (session,) = server.supervisor.sessions.values()
    found = b""
    batches = await server.store.read(session.session_id, 0, 10_000)
    for batch in batches:
        for record in batch.records:
            if isinstance(record.event, kind) and record.event.digest:
                found += await server.store.body(session.session_id, record.event.digest)
    return found
