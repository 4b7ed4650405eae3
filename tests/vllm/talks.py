"""Verbs for conversations with a server whose language model is vLLM, and what their answers should have been."""

from __future__ import annotations

import http.client
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from adapters.bench.own_server import ServerProcess
from adapters.client.credentials import ReconnectPolicy
from adapters.client.frames import DuplexEvent
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.replay.replaying import Replay, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from adapters.wire.schema import names
from core.session.apply import apply
from core.session.effects import Respond
from core.session.react import effects_of
from core.session.state import SessionState
from gpu_runtime.models.cascade.prompt import PromptBuilder
from gpu_runtime.models.cascade.settings import Settings
from store.opening import open_store
from tests.speech.hearing import RATE
from tests.vllm.conftest import Judge, VllmServer

ANSWER_S = 240.0
"""A busy machine says a few tokens a second."""

RESTART_S = 600.0
LONG = "Tell me a long story about a dragon and a princess."
PARIS = "What is the capital of France?"


def client(server: VllmServer, config: dict[str, Any] | None = None) -> DuplexClient:
    policy = ReconnectPolicy(attempts_max=200, initial_ms=100, delay_ms_max=500)
    return DuplexClient(server.url, model="cascade", config=config or cascade_session_config(), reconnect=policy)


class Microphone:
    """Sound in real time for as long as ``run`` is not cancelled: what is said, and silence."""

    SLICE = bytes(RATE * 2 // 5)

    def __init__(self, connected: DuplexClient) -> None:
        self._connected = connected
        self._waiting = b""

    def say(self, pcm: bytes) -> None:
        """pcm16 at 24 kHz."""
        self._waiting += pcm

    async def run(self) -> None:
        """Slice after slice."""
        size = len(self.SLICE)
        while True:
            sound, self._waiting = self._waiting[:size], self._waiting[size:]
            await self._connected.stream_pcm(sound + self.SLICE[len(sound) :], chunk_ms=40, realtime=True)


async def until(stream: Any, kind: str, within_s: float = ANSWER_S) -> DuplexEvent:
    """The next event of a kind."""
    with trio.fail_after(within_s):
        async for event in stream:
            if event.type == kind:
                return event  # type: ignore[no-any-return]
    raise AssertionError(f"the stream ended before {kind}")


async def status(stream: Any, within_s: float = ANSWER_S) -> str:
    """How the next answer ends."""
    done = await until(stream, names.RESPONSE_DONE, within_s)
    return str(done.payload["response"]["status"])


async def replayed(server: ServerProcess, session: str | None) -> Replay:
    """The session's log, folded again, and as it was recorded."""
    assert session is not None
    async with open_store(server.store_url) as store:
        replay = await replay_session(store, session, make_projection, encode_caused)
    assert replay.exact, replay.mismatch
    return replay


def check_answers(replay: Replay, judge: Judge) -> list[str]:
    """Each answer of the log is what one request over its prompt gives, as far as it came; their texts."""
    settings = Settings()
    prompts = PromptBuilder(settings.persona, True, settings.context_tokens, settings.max_tokens)
    texts = []
    for response_id, asked in asked_for(replay).items():
        response = replay.state.responses[response_id]
        prompt = prompts.build(asked.instructions, asked.history, lambda item: replay.state.items[item].text or "")
        whole = response.status == "completed"
        limit = asked.max_output_tokens or settings.max_tokens
        right, ended = judge.answer(prompt, limit if whole else min(limit, judge.tokens(response.text) + 2))
        said, right = " ".join(response.text.split()), " ".join(right.split())
        if whole and ended:
            assert said == right
        else:
            assert right.startswith(said)
        texts.append(said)
    return texts


def asked_for(replay: Replay) -> dict[str, Respond]:
    """What the model was asked for each answer."""
    state = SessionState()
    asked = {}
    for record in replay.records:
        apply(state, record)
        for effect in effects_of(record, state):
            if isinstance(effect, Respond):
                asked[effect.response_id] = effect
    return asked


def figures(server: VllmServer) -> dict[str, float]:
    """The plain numbers of /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    families = text_string_to_metric_families(page)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
