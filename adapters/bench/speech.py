"""Spoken turns in real time, as a person would have them: end of speech -> first audio at the client, over the socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio

from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.command_line.audio_files import open_wav
from adapters.command_line.talk_session import RATE, NoAnswer, Talk, TalkPlan
from core.ports.store import Store
from core.session import events as e
from core.session.time_units import NS_PER_MS

CHUNK_MS = 20


@attrs.frozen
class SpokenTurn:
    """One question and its answer. Times in ms after the end of the question's speech. ``came_ns``: when the first audio was
    here, by this machine's clock, which is the server's, too."""

    name: str
    session: str
    first_audio_ms: int
    underruns: int
    answer_ms: int
    transcript: str
    answer: str
    came_ns: int
    stages: dict[str, float] = attrs.field(factory=dict)


class _Silent:
    def line(self, text: str) -> None: ...

    def levels(self, user: float, assistant: float, state: str) -> None: ...


async def speak(
    url: str, questions: Sequence[Path], on_turn: Callable[[SpokenTurn | None, str], None]
) -> list[SpokenTurn]:
    """Ask each question in a session of its own, in real time, and hear the answer out. A turn without an answer is told
    to ``on_turn`` as None and left out."""
    turns = []
    for path in questions:
        turn = await _ask(url, path)
        if isinstance(turn, str):
            on_turn(None, f"{path.name}: {turn}")
        else:
            on_turn(turn, "")
            turns.append(turn)
    return turns


async def _ask(url: str, path: Path) -> SpokenTurn | str:
    plan = TalkPlan(question=(path.name, open_wav(path, RATE)), chunk_ms=CHUNK_MS)
    async with DuplexClient(url, model="cascade", config=cascade_session_config()) as client:
        prebuffer_ms = int(client.session_info.get("recommended_prebuffer_ms") or 0)
        talk = Talk(client, plan, _Silent(), prebuffer_ms=prebuffer_ms)
        try:
            await talk.run()
        except NoAnswer as error:
            return str(error)
        came_ns = time.time_ns() - (talk.now_ms - talk.record.answers[0].first_audio_ms) * NS_PER_MS
        summary = talk.record.summary()
        session = client.session_id or ""
    first = summary["answers"][0]
    return SpokenTurn(
        path.stem,
        session,
        first["latency_ms"],
        sum(answer["underruns"] for answer in summary["answers"]),
        first["received_ms"],
        summary["turns"][0]["transcript"] or "",
        first["transcript"],
        came_ns,
    )


async def break_down(store: Store, turn: SpokenTurn) -> SpokenTurn:
    """The same turn with its stages, in ms after the last loud frame arrived, read from its log."""
    stamps: dict[str, int] = {}
    for batch in await store.read(turn.session):
        for record in batch.records:
            _note(stamps, record)
    start = stamps.pop("last_speech", None)
    if start is None:
        return turn
    stamps["sent, and at the client"] = turn.came_ns
    return attrs.evolve(turn, stages={name: (at - start) / NS_PER_MS for name, at in stamps.items()})


def _note(stamps: dict[str, int], record: e.Record) -> None:
    event = record.event
    if isinstance(event, e.SpeechStopped):
        stamps.setdefault("speech_stopped in the log", record.at_ns)
        for name, at_ns in event.timings:
            stamps.setdefault(name, at_ns)
    elif isinstance(event, e.Output) and event.kind == "speak":
        for name, at_ns in event.timings:
            stamps.setdefault(name, at_ns)
        stamps.setdefault("first output in the log", record.at_ns)


async def settle(seconds: float) -> None:
    """Let the machine come to rest between parts."""
    await trio.sleep(seconds)
