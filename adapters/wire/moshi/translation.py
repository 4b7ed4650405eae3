"""Moshi's messages as commands, and what a URL may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adapters.wire import fields
from adapters.wire.clocked import fixed_rules
from adapters.wire.dialect import NO_GRACE_MS, Ask, Handler, Request, Step
from adapters.wire.moshi.encoding import RATE
from adapters.wire.moshi.projection import AUDIO, ERROR, TEXT
from adapters.wire.problems import Problem
from adapters.wire.served import unknown_voice, voice_named
from core.ports.store import Body
from core.session import commands as c
from core.session.config import TEXT as TEXT_INPUT
from core.session.config import AudioFormat, SessionConfig
from core.session.digest import body_digest
from core.session.overlap import may_barge_in

RULES = fixed_rules(RATE, RATE)
DEFAULTS = SessionConfig(
    input_format=AudioFormat("pcm16", RATE),
    output_format=AudioFormat("pcm16", RATE),
    max_client_lead_ms=400,
    disconnect_grace_ms=NO_GRACE_MS,
)
"""The lead is short: these clients play all that they were sent, whatever is cut."""

PROMPT_CHARS_MAX = 16_384


def audio(request: Request) -> list[Step]:
    pcm: bytes = request.payload["pcm"]
    body = Body(body_digest(pcm), pcm)
    return [Ask(c.AppendAudio(body.digest, len(pcm), len(pcm) // 2), (body,))]


def text(request: Request) -> list[Step]:
    """A turn that is typed, beyond what Moshi's protocol knows. Over an answer it takes the turn where speech may."""
    typed: str = request.payload["text"]
    if not typed.strip():
        return []
    if TEXT_INPUT not in request.state.inputs:
        raise Problem("input_unsupported", "This session's model takes no text.", "text")
    cut = [Ask(c.CancelOutput("barge_in", quiet=True))] if may_barge_in(request.state.config) else []
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": typed}]}
    return [*cut, Ask(c.CreateItem("user", typed, json.dumps(item, ensure_ascii=False))), Ask(c.CreateResponse())]


HANDLERS: dict[str, Handler] = {AUDIO: audio, TEXT: text}


def opening(query: Mapping[str, str], voices: tuple[str, ...]) -> Mapping[str, Any]:
    """``text_prompt`` and ``voice_prompt``; other parameters tune a model that is not this one. A voice is a name of the
    model's list, with or without the suffix that PersonaPlex's files have, and nothing else."""
    changes: dict[str, Any] = {}
    prompt = query.get("text_prompt", "")
    if prompt:
        changes["instructions"] = fields.text(prompt, "text_prompt", chars_max=PROMPT_CHARS_MAX)
    wanted = query.get("voice_prompt", "")
    if wanted:
        voice = voice_named(wanted, voices)
        if voice is None:
            raise unknown_voice(wanted, voices, "voice_prompt")
        changes["voice"] = voice
    return changes


def plain_error(code: str, message: str) -> dict[str, Any]:
    """A sentence, as the protocol's error has it."""
    return {"type": ERROR, "text": message}
