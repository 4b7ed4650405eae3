"""OpenAI's own Python SDK, unmodified, speaks with the real models: asks, hears, talks over the answer, is answered."""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

import openai
import pytest

from adapters.bench.own_server import ServerProcess
from tests.speech.hearing import RATE, STORY, question

pytestmark = [
    pytest.mark.models,
    pytest.mark.realtime,
    pytest.mark.interop,
    # The SDK's own use of websockets, not ours.
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning"),
]

CHUNK_MS = 100
HEAR_S = 2.0


class Microphone:
    """Sends what it is given in real time, and silence otherwise."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pending = bytearray()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def say(self, pcm: bytes) -> None:
        with self._lock:
            self._pending += pcm

    def _run(self) -> None:
        size = CHUNK_MS * RATE // 1_000 * 2
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += CHUNK_MS / 1_000
            with self._lock:
                chunk = bytes(self._pending[:size]).ljust(size, b"\0")
                del self._pending[:size]
            self._connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())

    def __enter__(self) -> Microphone:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def until(connection: Any, kind: str) -> Any:
    while True:
        event = connection.recv()
        assert event.type != "error", event
        if event.type == kind:
            return event


def test_a_spoken_conversation_with_a_barge_in(cascade_server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{cascade_server.http_url}/v1", api_key="sk-none")
    with client.realtime.connect(model="cascade") as connection, Microphone(connection) as microphone:
        assert connection.recv().type == "session.created"
        microphone.say(question("kokoro_af_heart", STORY)[1])
        assert "cat" in until(connection, "conversation.item.input_audio_transcription.completed").transcript
        first = until(connection, "response.output_audio.delta")
        time.sleep(HEAR_S)  # the SDK's socket buffers meanwhile, as a player would
        microphone.say(question("kokoro_bf_emma", 0)[1])
        cut = until(connection, "response.done").response
        assert (cut.status, cut.status_details.reason) == ("cancelled", "turn_detected")
        assert cut.id == first.response_id
        answer = until(connection, "response.done").response
        assert answer.status == "completed"
        assert "Paris" in answer.output[0].content[0].transcript
        connection.conversation.item.retrieve(item_id=cut.output[0].id)
        kept = until(connection, "conversation.item.retrieved").item
        assert kept.content[0].transcript == cut.output[0].content[0].transcript, (
            "an item knows what was heard, no more"
        )
