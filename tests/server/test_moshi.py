"""Moshi's dialect through the front: binary kinds, one Ogg-Opus stream each way, prompts in the URL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import numpy as np
import pytest
import sphn
import trio

from adapters.server.settings import ServerSettings
from tests.server.servers import Server, open_test_server
from tests.server.test_front import UPGRADE, upgrade

RATE, FRAME = 24_000, 1_920
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(FRAME) / RATE)).astype(np.float32)
QUIET = np.zeros(FRAME, np.float32)


@attrs.define
class Talker:
    """A client as Moshi's own is: it sends a frame every 80 ms and plays what comes."""

    socket: Any
    writer: Any = attrs.field(factory=lambda: sphn.OpusStreamWriter(RATE))
    reader: Any = attrs.field(factory=lambda: sphn.OpusStreamReader(RATE))
    kinds: list[int] = attrs.field(factory=list)
    sound: list[Any] = attrs.field(factory=list)
    text: str = ""
    errors: list[str] = attrs.field(factory=list)

    async def frames(self, samples: Any, count: int) -> None:
        """Send ``count`` frames in real time, hearing meanwhile."""
        for _ in range(count):
            await self.socket.send_message(b"\x01" + self.writer.append_pcm(samples))
            with trio.move_on_after(0.08):
                while True:
                    await self.hear()

    async def hear(self) -> int:
        message = await self.socket.get_message()
        assert isinstance(message, bytes)
        self.kinds.append(message[0])
        if message[0] == 1:
            self.sound.append(self.reader.append_bytes(message[1:]))
        elif message[0] == 2:
            self.text += message[1:].decode()
        elif message[0] == 5:
            self.errors.append(message[1:].decode())
        return message[0]

    def heard_ms(self) -> float:
        return sum(map(len, self.sound)) * 1000 / RATE

    def loud_ms(self, since: int = 0) -> float:
        whole = np.concatenate(self.sound[since:]) if self.sound[since:] else np.zeros(0)
        frames = [whole[at : at + 480] for at in range(0, len(whole), 480)]
        return 20.0 * sum(float(np.sqrt(np.mean(frame**2))) > 0.01 for frame in frames)


@asynccontextmanager
async def talking(server: Server, path: str = "/api/chat") -> AsyncIterator[Talker]:
    async with server.connect(path) as client:
        talker = Talker(client.socket)
        assert await client.socket.get_message() == b"\x00"
        yield talker


async def test_a_whole_conversation() -> None:
    async with open_test_server(answer_units=10, rtf=0.2) as server, talking(server) as talker:
        await talker.frames(TONE, 6)
        assert talker.loud_ms() == 0
        await talker.frames(QUIET, 60)
        assert talker.text.startswith("1 turn 1")
        assert talker.loud_ms() == pytest.approx(10 * 200, abs=60)
        # As much sound came as went, but for what is on its way, and none of it in pieces of a frame.
        assert talker.heard_ms() == pytest.approx(66 * 80, abs=500)
        assert all(len(sound) % FRAME == 0 for sound in talker.sound)
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.samples == 66 * FRAME
    await trio.sleep(2)


async def test_speaking_over_the_answer_silences_it_within_what_is_on_its_way() -> None:
    script = {"answer_units": 200, "long_units": 200, "transcript": "a long question", "rtf": 0.2}
    async with open_test_server(**script) as server, talking(server) as talker:
        await talker.frames(TONE, 6)
        await talker.frames(QUIET, 25)
        before = talker.loud_ms()
        assert before > 1_000
        since = len(talker.sound)
        await talker.frames(TONE, 25)
        assert talker.loud_ms(since) < 1_200 + 400 + 200  # overlap_barge_in_ms, the lead, a unit
        (session,) = server.supervisor.sessions.values()
        assert session.state.epoch == 2
        since = len(talker.sound)
        await talker.frames(QUIET, 3)
        assert talker.loud_ms(since) == 0


async def test_the_stream_never_falls_silent_for_a_client_that_waits() -> None:
    async with open_test_server() as server, talking(server) as talker:
        await talker.frames(QUIET, 50)
        assert talker.kinds.count(1) >= 48


async def test_prompts_in_the_url() -> None:
    async with open_test_server() as server:
        path = "/api/chat?text_prompt=Be%20kind.&voice_prompt=tone.pt&text_temperature=0.7&seed=1"
        async with talking(server, path):
            (session,) = server.supervisor.sessions.values()
            assert session.state.config.instructions == "Be kind."
            assert session.state.config.voice == "tone"
            assert (session.state.config.input_format.encoding, session.state.config.input_format.rate) == (
                "pcm16",
                RATE,
            )


@pytest.mark.parametrize("voice", ["NATF9.pt", "../../etc/passwd", "/tmp/evil.pt", "tone/../tone", "tone.pt.pt"])
async def test_a_voice_is_a_name_out_of_the_list_and_never_a_path(voice: str) -> None:
    async with open_test_server() as server:
        got = await upgrade(server, f"/api/chat?voice_prompt={voice}", base=UPGRADE)
        assert got.startswith(b"HTTP/1.1 400 ")
        error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"], error["param"]) == ("invalid_voice", "voice_prompt")
        assert "tone" in error["message"]
        assert not server.supervisor.sessions


@pytest.mark.parametrize("kind", [b"\x00", b"\x03\x00", b"\x04{}", b"\x06", b"\x09abc", b"\xff", b""])
async def test_kinds_that_mean_nothing_here_are_passed_over(kind: bytes) -> None:
    async with open_test_server() as server, talking(server) as talker:
        await talker.socket.send_message(kind)
        await talker.frames(QUIET, 5)
        assert talker.errors == []


@pytest.mark.parametrize(
    "message", ["text", b"\x01" + b"no ogg at all" * 4, b"\x01" + bytes(70_000), b"\x01OggS\xff" + bytes(60)]
)
async def test_what_cannot_be_read_is_told_and_a_new_stream_may_begin(message: bytes | str) -> None:
    async with open_test_server() as server, talking(server) as talker:
        await talker.frames(QUIET, 3)
        await talker.socket.send_message(message)
        while await talker.hear() != 5:
            pass
        assert talker.errors[0]
        if message[:1] == b"\x01":
            talker.writer = sphn.OpusStreamWriter(RATE)
        talker.sound.clear()
        await talker.frames(QUIET, 10)
        assert talker.heard_ms() >= 500


async def test_a_full_house_says_so() -> None:
    settings = ServerSettings(model="scripted", sessions_max=1)
    async with open_test_server(settings) as server, talking(server), server.connect("/api/chat") as client:
        message = await client.socket.get_message()
        assert message[0] == 5
        assert b"sessions already" in message


async def test_a_turn_may_be_typed_and_takes_the_turn_of_an_answer() -> None:
    async with open_test_server(answer_units=50, rtf=0.2) as server, talking(server) as talker:
        for number, typed in enumerate(["what is it", "and why"], start=1):
            await talker.socket.send_message(b"\x02" + typed.encode())
            await talker.frames(QUIET, 15)
            assert typed in talker.text
            (session,) = server.supervisor.sessions.values()
            assert session.state.epoch == number
            assert session.state.active is not None
        assert talker.loud_ms() > 1_000


@pytest.mark.parametrize(("typed", "inputs"), [(b"\xff\xfe", "audio,text"), (b"hello", "audio")])
async def test_what_cannot_be_typed_is_told_and_the_session_lives(typed: bytes, inputs: str) -> None:
    async with open_test_server(inputs=inputs) as server, talking(server) as talker:
        await talker.socket.send_message(b"\x02  ")  # nothing was typed: nothing is answered
        await talker.socket.send_message(b"\x02" + typed)
        await talker.frames(QUIET, 5)
        assert len(talker.errors) == 1
        (session,) = server.supervisor.sessions.values()
        assert session.state.active is None
