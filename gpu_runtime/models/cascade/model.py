"""The plugin: loads the four parts, and hands each message to the session's ear or lanes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import attrs

from core.ports.runtime import (
    AbortLane,
    Capabilities,
    ClearTurn,
    CloseSession,
    CommitTurn,
    ConfigureSession,
    Feed,
    ModelStatistics,
    OpenLane,
    OpenSession,
    PauseLane,
    Respond,
    ResumeLane,
    ToRuntime,
)
from core.session.config import AUDIO, TEXT, TOOL_RESULT
from gpu_runtime.models.cascade.answer import Workshop
from gpu_runtime.models.cascade.chat_http import HttpChatModel
from gpu_runtime.models.cascade.ear import Ear, EarParts
from gpu_runtime.models.cascade.hearing import Hearing
from gpu_runtime.models.cascade.kokoro import load_kokoro
from gpu_runtime.models.cascade.lanes import SessionLanes
from gpu_runtime.models.cascade.llama import load_llama
from gpu_runtime.models.cascade.meter import Meter
from gpu_runtime.models.cascade.parts import (
    SPEAKING_RATE,
    CallingModel,
    Cancel,
    ChatMessage,
    Detector,
    LanguageModel,
    PartFailed,
    Recogniser,
    Voice,
)
from gpu_runtime.models.cascade.piper import load_piper
from gpu_runtime.models.cascade.prompt import PromptBuilder
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.models.cascade.silero import load_detector
from gpu_runtime.models.cascade.stage import Stage
from gpu_runtime.models.cascade.transcripts import Transcripts
from gpu_runtime.models.cascade.whisper import load_recogniser
from gpu_runtime.plugin import Emit, ModelUnavailable, Progress

PREBUFFER_MS = 80
"""The first piece is whole when it comes, and longer than what the next one takes."""

SESSIONS_MAX = 64


@attrs.frozen
class Parts:
    """The four, loaded."""

    make_detector: Callable[[], Detector]
    recogniser: Recogniser
    model: LanguageModel
    voice: Voice


@attrs.frozen
class _Session:
    lanes: SessionLanes
    transcripts: Transcripts


class Cascade:
    """A Model (see plugin.py) over any four parts."""

    def __init__(self, parts: Parts, settings: Settings, emit: Emit) -> None:
        self._parts = parts
        self._settings = settings
        self._reading = Stage("recogniser", 1)
        self._thinking = Stage("language-model", parts.model.parallel)
        self._speaking = Stage("voice", 1)
        self._hearing = Hearing()
        self._sessions: dict[str, _Session] = {}
        self._shop = Workshop(parts.model, parts.voice, self._thinking, self._speaking, settings, emit, Meter())
        self._ear_parts = EarParts(
            parts.make_detector, parts.recogniser, self._reading, settings, emit, self._hearing.wake
        )
        calls = isinstance(parts.model, CallingModel)
        self._prompts = PromptBuilder(
            settings.persona, parts.model.few_shot, parts.model.context_tokens, settings.max_tokens, calls
        )
        self._capabilities = Capabilities(
            model="cascade",
            unit_ms=settings.unit_ms,
            output_rate=SPEAKING_RATE,
            lane_tokens_max=parts.model.context_tokens,
            sessions_max=SESSIONS_MAX,
            voices=(parts.voice.name,),
            prebuffer_ms=PREBUFFER_MS,
            inputs=(AUDIO, TEXT, TOOL_RESULT),
            tool_calls=calls,
        )

    @property
    def capabilities(self) -> Capabilities:
        """See Model."""
        return self._capabilities

    def handle(self, message: ToRuntime) -> None:
        """See Model. Raises RuntimeError when a thread of the cascade has died: the process had better end too."""
        for worker in (self._reading, self._thinking, self._speaking, self._hearing):
            if worker.failure is not None:
                raise RuntimeError("a thread of the cascade has died") from worker.failure
        if isinstance(message, OpenSession):
            self._open(message)
            return
        session = self._sessions.get(message.session)
        if session is None:
            return
        match message:
            case CommitTurn():
                session.transcripts.expect(message.item_id)
                self._hearing.put(message)
            case Feed() | ConfigureSession() | ClearTurn():
                if isinstance(message, ConfigureSession):
                    session.lanes.configure(message)
                self._hearing.put(message)
            case OpenLane():
                session.lanes.open(message)
            case Respond():
                session.lanes.respond(message)
            case AbortLane():
                session.lanes.abort(message)
            case PauseLane():
                session.lanes.pause(message)
            case ResumeLane():
                session.lanes.resume(message)
            case CloseSession():
                self._close(message.session)

    def statistics(self) -> ModelStatistics:
        """See Model. What the language model says of its lanes, and what any of them has."""
        return self._shop.meter.statistics(
            self._parts.model.statistics(), self._thinking.statistics(), len(self._sessions)
        )

    def close(self) -> None:
        """See Model."""
        for session in list(self._sessions):
            self._close(session)
        self._hearing.close()
        for stage in (self._reading, self._thinking, self._speaking):
            stage.close()
        self._parts.model.close()

    def _open(self, message: OpenSession) -> None:
        self._close(message.session)
        transcripts = Transcripts()
        lanes = SessionLanes(message.session, self._shop, self._prompts, transcripts)
        lanes.configure(message)
        self._sessions[message.session] = _Session(lanes, transcripts)
        self._hearing.add(Ear(message, self._ear_parts, transcripts, lanes))

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._hearing.remove(name)
            session.lanes.close()


def load(settings: Mapping[str, Any], emit: Emit, progress: Progress) -> Cascade:
    """The entry point: see Loader in plugin.py. Raises ModelUnavailable."""
    chosen = Settings.parse(settings)
    parts = load_parts(chosen, progress)
    return Cascade(parts, chosen, emit)


def load_parts(settings: Settings, progress: Progress) -> Parts:
    """All four at the same time: loading is mostly reading. Raises ModelUnavailable."""
    if settings.detector != "silero":
        raise ModelUnavailable(f"detector={settings.detector} is unknown; use silero")
    shares = Shares(progress, ("recogniser", "language model", "voice"))
    progress("weights", 0.0)
    with ThreadPoolExecutor(max_workers=4) as pool:
        detector = pool.submit(load_detector)
        recogniser = pool.submit(load_recogniser, settings.recogniser, settings.recogniser_threads)
        model = pool.submit(load_model, settings, partial(shares.tell, "language model"))
        voice = pool.submit(load_voice, settings)
        for part, loading in (("recogniser", recogniser), ("language model", model), ("voice", voice)):
            loading.result()
            shares.tell(part, part, 1.0)
        parts = Parts(detector.result(), recogniser.result(), model.result(), voice.result())
    prompts = PromptBuilder(settings.persona, parts.model.few_shot, parts.model.context_tokens, settings.max_tokens)
    try:
        parts.model.warm(prompts.assemble("", [ChatMessage("user", "Hello.")]), Cancel())
    except PartFailed as failure:
        raise ModelUnavailable(f"llm={settings.llm} does not answer: {failure}") from failure
    progress("ready", 1.0)
    return parts


class Shares:
    """The progress of parts that load at the same time, as one that never goes back. Called from several threads."""

    LOADED = 0.9
    """What is done when all of them are there."""

    def __init__(self, progress: Progress, parts: Sequence[str]) -> None:
        self._progress = progress
        self._done = dict.fromkeys(parts, 0.0)
        self._lock = threading.Lock()

    def tell(self, part: str, what: str, fraction: float) -> None:
        """``part`` is doing ``what``, and has come so far."""
        with self._lock:
            self._done[part] = max(self._done[part], fraction)
            self._progress(what, self.LOADED * sum(self._done.values()) / len(self._done))


def load_model(settings: Settings, tell: Progress = lambda _what, _fraction: None) -> LanguageModel:
    """By the setting ``llm``. ``tell`` gets what takes long. Raises ModelUnavailable."""
    kind, _, given = settings.llm.partition(":")
    if kind == "vllm" and given:
        from gpu_runtime.models.cascade.vllm_chat import load_vllm_chat

        return load_vllm_chat(given, settings, tell)
    if kind == "openai" and given:
        url, _, name = given.partition(",")
        key = os.environ.get(settings.llm_api_key_env) if settings.llm_api_key_env else None
        return HttpChatModel(url, name or None, key, settings.llm_parallel)
    return load_llama(
        settings.llm,
        settings.llm_threads,
        settings.llm_batch_threads,
        settings.llm_parallel,
        settings.context_tokens,
    )


def load_voice(settings: Settings) -> Voice:
    """By the setting ``voice``. Raises ModelUnavailable."""
    if settings.voice.startswith("kokoro:"):
        return load_kokoro(settings.voice, settings.voice_threads)
    return load_piper(settings.voice, settings.voice_threads)
