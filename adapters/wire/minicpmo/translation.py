"""The demo's messages as commands. Reference voices and pictures go to a model that takes them; from any other they are
kept without a word, as the demo's clients send them to every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.clocked import fixed_rules
from adapters.wire.dialect import NO_GRACE_MS, Answer, Ask, Handler, Request, Step, Waiting
from adapters.wire.images import of_frames, reference_voice
from adapters.wire.minicpmo.encoding import OUTPUT
from adapters.wire.minicpmo.projection import PREPARE
from adapters.wire.openai.translation import append_audio
from adapters.wire.problems import Problem
from core.ports.store import Body
from core.session import commands as c
from core.session.config import IMAGE, REFERENCE_AUDIO, AudioFormat, SessionConfig

INPUT = AudioFormat("pcm_f32le", 16_000)
DEFAULT_PROMPT = "You are a helpful assistant."
PAUSE_S_MAX = 3_600.0
FRAMES_MAX = 16
"""Pictures that may come with one chunk."""
RULES = fixed_rules(INPUT.rate, OUTPUT.rate)
DEFAULTS = SessionConfig(
    input_format=INPUT,
    output_format=OUTPUT,
    max_client_lead_ms=2_000,
    disconnect_grace_ms=NO_GRACE_MS,
)
"""The lead is two chunks: a result comes once a second, and must last until the next."""


def prepare(request: Request) -> list[Step]:
    prompt = request.payload.get("system_prompt")
    text = DEFAULT_PROMPT if prompt is None else fields.text(prompt, "system_prompt")
    voice: list[Ask] = []
    for name in ("ref_audio_path", "ref_audio_base64", "tts_ref_audio_base64"):
        if request.payload.get(name) is not None:
            value = fields.text(request.payload[name], name, chars_max=fields.FRAME_BYTES_MAX)
            if name != "ref_audio_path" and REFERENCE_AUDIO in request.state.inputs:
                voice = reference_voice(value, name)  # the one to speak with has the last word
    if request.payload.get("config") is not None:
        fields.table(request.payload["config"], "config")
    config = attrs.evolve(request.state.config, instructions=text)
    return [*voice, Ask(c.UpdateConfig(config, f"{PREPARE}{request.state.position}"))]


def audio_chunk(request: Request) -> list[Step]:
    value = request.payload.get("audio_base64")
    if value is None or value == "":
        raise Problem("missing_required_parameter", "Missing audio_base64", "audio_base64")
    frames: list[tuple[c.ImageBody, Body]] = []
    if request.payload.get("frame_base64_list") and IMAGE in request.state.inputs:
        frames = of_frames(request.payload["frame_base64_list"], "frame_base64_list", FRAMES_MAX)
    appended = append_audio(attrs.evolve(request, event_id=None), value, "audio_base64", None, images=frames)
    forced = request.payload.get("force_listen")
    if forced is not None and fields.flag(forced, "force_listen"):
        return [Ask(c.JudgeOverlap("barge_in", "client_force_listen")), *appended]
    return appended


def pause(request: Request) -> list[Step]:
    timeout = request.payload.get("timeout")
    if timeout is None:
        return [Ask(c.Pause())]
    watchdog_ms = int(fields.number(timeout, "timeout", 0.001, PAUSE_S_MAX) * 1000)
    config = attrs.evolve(request.state.config, pause_watchdog_ms=watchdog_ms)
    return [Ask(c.UpdateConfig(config)), Ask(c.Pause())]


def resume(request: Request) -> list[Step]:
    return [Ask(c.Unpause())]


def stop(request: Request) -> list[Step]:
    return [Ask(c.Close("stopped"))]


def interrupt(request: Request) -> list[Step]:
    """The demo's own server answers this and does nothing; ``force_listen`` is what interrupts."""
    return [Answer({"type": "interrupted"})]


def nothing(request: Request) -> list[Step]:
    return []


HANDLERS: dict[str, Handler] = {
    "prepare": prepare,
    "audio_chunk": audio_chunk,
    "pause": pause,
    "resume": resume,
    "stop": stop,
    "interrupt": interrupt,
    "client_diagnostic": nothing,
}


def plain_error(code: str, message: str) -> dict[str, Any]:
    """The demo's errors are a sentence."""
    return {"type": "error", "error": message}


def queue_event(waiting: Waiting) -> Mapping[str, Any]:
    """``queued`` once, then ``queue_update``."""
    event: dict[str, Any] = {
        "type": "queued" if waiting.first else "queue_update",
        "position": waiting.position,
        "estimated_wait_s": waiting.wait_s,
        "queue_length": waiting.queue_length,
    }
    return {**event, "ticket_id": waiting.ticket} if waiting.first else event
