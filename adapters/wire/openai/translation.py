"""OpenAI's client events as commands. One small function for each event; each is pure and raises Problem."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.audio import decode_audio, loudness
from adapters.wire.dialect import NO_GRACE_MS, Ask, Handler, Request, Step
from adapters.wire.images import images_of, of_data_url
from adapters.wire.problems import Problem
from adapters.wire.schema import names
from adapters.wire.tools import tool_choice_of, tools_of
from adapters.wire.updates import COMMON_SETTERS, OUTPUT_TOKENS_MAX, Rules, json_size, merge, no_new_voice
from core.ports.store import Body
from core.session import commands as c
from core.session.config import IMAGE, SessionConfig
from core.session.digest import body_digest

METADATA_BYTES_MAX = 16 * 1024
ITEM_BYTES_MAX = 1024 * 1024
PLAYED_MS_MAX = 24 * 3_600_000

RULES = Rules(input_rate=24_000, output_rate=24_000, setters=COMMON_SETTERS)
DEFAULTS = SessionConfig(max_client_lead_ms=1_500, disconnect_grace_ms=NO_GRACE_MS)

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_AUDIO_PARTS = frozenset({"input_audio", "output_audio", "audio"})
_IMAGE_PART = "input_image"
_BODIES = frozenset({"audio", "image_url"})
"""What of a content part never goes into the log's JSON, nor back to the client."""


def session_update(request: Request) -> list[Step]:
    changes = fields.table(fields.required(request.payload, "session"), "session")
    no_new_voice(changes)
    return [Ask(c.UpdateConfig(merge(request.state.config, changes, request.rules), request.event_id))]


def append(request: Request) -> list[Step]:
    value = fields.required(request.payload, "audio")
    return append_audio(request, value, "audio", None)


def append_audio(
    request: Request,
    value: object,
    param: str,
    is_speech: bool | None,
    *,
    measure: bool = False,
    images: Sequence[tuple[c.ImageBody, Body]] = (),
) -> list[Step]:
    """Audio in the session's input format, and what was shown with it; none at all is no append. ``measure``: its loudness
    is wanted, too."""
    if not isinstance(value, str):
        raise fields.wrong(param, "base64 text", value)
    fmt = request.state.config.input_format
    data, samples = decode_audio(value, fmt, param)
    shown, bodies = images_of(images)
    if not samples:
        return [Ask(c.AppendAudio("", 0, 0, request.event_id, images=shown), bodies)] if shown else []
    body = Body(body_digest(data), data)
    rms = loudness(data, fmt) if measure and is_speech is None else None
    appended = c.AppendAudio(body.digest, len(data), samples, request.event_id, is_speech, rms, shown)
    return [Ask(appended, (body, *bodies))]


def commit(request: Request) -> list[Step]:
    return [Ask(c.CommitInput(None, request.event_id))]


def clear(request: Request) -> list[Step]:
    return [Ask(c.ClearInput(request.event_id))]


def output_clear(request: Request) -> list[Step]:
    return [Ask(cancel(request, "output_audio_buffer_clear", quiet=True))]


def response_cancel(request: Request) -> list[Step]:
    """OpenAI's cancel is about generation: an answer that was handed over whole is over for it."""
    return [Ask(attrs.evolve(cancel(request, "client_cancelled"), unsent_only=True))]


def cancel(request: Request, reason: str, *, quiet: bool = False, clear_input: bool = False) -> c.CancelOutput:
    """The one command for every cut."""
    response_id = fields.optional_id(request.payload, "response_id")
    return c.CancelOutput(reason, response_id, quiet, clear_input, event_id=request.event_id)


def response_create(request: Request) -> list[Step]:
    shape = request.payload.get("response") or {}
    wanted = fields.table(shape, "response")
    if wanted.get("input"):
        raise Problem("unsupported", "'response.input' is not served; create items instead.", "response.input")
    conversation = wanted.get("conversation", "auto")
    if conversation not in ("auto", "none", None):
        raise Problem("invalid_value", "'response.conversation' is 'auto' or 'none'.", "response.conversation")
    instructions = wanted.get("instructions")
    return [
        Ask(
            c.CreateResponse(
                _metadata(wanted.get("metadata")),
                None if instructions is None else fields.text(instructions, "response.instructions"),
                _modalities(wanted),
                _output_tokens(wanted),
                conversation == "none",
                request.event_id,
                None if wanted.get("tools") is None else tools_of(wanted["tools"], "response.tools"),
                None
                if wanted.get("tool_choice") is None
                else tool_choice_of(wanted["tool_choice"], "response.tool_choice"),
            )
        )
    ]


def _metadata(value: object) -> str:
    if value is None:
        return "null"
    if json_size(fields.table(value, "response.metadata")) > METADATA_BYTES_MAX:
        raise Problem(
            "invalid_value", f"'response.metadata' has more than {METADATA_BYTES_MAX} bytes.", "response.metadata"
        )
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _modalities(wanted: Mapping[str, Any]) -> tuple[str, ...] | None:
    for key in ("output_modalities", "modalities"):
        if wanted.get(key) is not None:
            chosen = set(map(str, fields.array(wanted[key], f"response.{key}")))
            if not chosen or chosen - {"text", "audio"}:
                raise Problem("invalid_value", f"'response.{key}' is a list of 'audio' or 'text'.", f"response.{key}")
            return ("audio",) if "audio" in chosen else ("text",)
    return None


def _output_tokens(wanted: Mapping[str, Any]) -> int | None:
    for key in ("max_output_tokens", "max_response_output_tokens"):
        value = wanted.get(key)
        if value is not None and value != "inf":
            return fields.whole(value, f"response.{key}", 1, OUTPUT_TOKENS_MAX)
    return None


def item_create(request: Request) -> list[Step]:
    item = fields.table(fields.required(request.payload, "item"), "item")
    if json_size(_bare(item)) > ITEM_BYTES_MAX:
        raise Problem("invalid_value", f"'item' has more than {ITEM_BYTES_MAX} bytes.", "item")
    after = fields.optional_id(request.payload, "previous_item_id")
    item_id = fields.optional_id(item, "id", "item.id")
    kind = fields.text(fields.required(item, "type", "item.type"), "item.type")
    if kind == "message":
        return _message(request, item, item_id, after)
    if kind == "function_call_output":
        call_id = fields.required_id(item, "call_id", "item.call_id")
        text = fields.text(fields.required(item, "output", "item.output"), "item.output")
        return [_create(request, kind, text, item, item_id, after, call_id)]
    if kind == "function_call":
        name = fields.required_id(item, "name", "item.name")
        call_id = fields.optional_id(item, "call_id", "item.call_id") or ""
        arguments = fields.text(item.get("arguments", ""), "item.arguments")
        return [_create(request, kind, arguments, item, item_id, after, call_id, name)]
    raise Problem("unsupported", f"Items of type {kind[:40]!r} are not served.", "item.type")


def _create(
    request: Request,
    role: str,
    text: str,
    item: Mapping[str, Any],
    item_id: str | None,
    after: str | None,
    call_id: str = "",
    name: str = "",
    images: tuple[c.ImageBody, ...] = (),
    bodies: tuple[Body, ...] = (),
) -> Ask:
    source = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return Ask(c.CreateItem(role, text, source, item_id, after, request.event_id, call_id, name, images), bodies)


def _bare(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item without audio and images: they are bodies, and are not echoed."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [
        {key: value for key, value in part.items() if key not in _BODIES} if isinstance(part, dict) else part
        for part in content
    ]
    return {**item, "content": parts}


def _message(request: Request, item: Mapping[str, Any], item_id: str | None, after: str | None) -> list[Step]:
    role = item.get("role")
    if role not in ("user", "assistant", "system"):
        raise Problem("invalid_value", "'item.role' is 'user', 'assistant' or 'system'.", "item.role")
    audio = _only_audio(item)
    if audio is not None and role == "user":
        # A spoken message is input that is committed at once, without asking for an answer.
        appended = append_audio(attrs.evolve(request, event_id=None), audio, "item.content[0].audio", True)
        return [*appended, Ask(c.CommitInput(False, request.event_id))]
    parts, params = _parts(item)
    text = " ".join(filter(None, map(_part_text, parts, params)))
    images, bodies = images_of(
        [
            _image(request, role, part, param)
            for part, param in zip(parts, params, strict=True)
            if part.get("type") == _IMAGE_PART
        ]
    )
    return [_create(request, role, text, _bare(item), item_id, after, images=images, bodies=bodies)]


def _image(request: Request, role: str, part: Mapping[str, Any], param: str) -> tuple[c.ImageBody, Body]:
    """All or nothing: a model that does not see gets no part of the item."""
    if role != "user":
        raise Problem("invalid_value", "Only a user's message has images.", f"{param}.type")
    if IMAGE not in request.state.inputs:
        raise Problem("unsupported", "This session's model takes no images.", f"{param}.type")
    return of_data_url(fields.required(part, "image_url", f"{param}.image_url"), f"{param}.image_url")


def _parts(item: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[str]]:
    content = fields.array(fields.required(item, "content", "item.content"), "item.content")
    params = [f"item.content[{index}]" for index in range(len(content))]
    return [fields.table(part, param) for part, param in zip(content, params, strict=True)], params


def _part_text(part: Mapping[str, Any], param: str) -> str:
    kind = fields.text(fields.required(part, "type", f"{param}.type"), f"{param}.type")
    if kind in _TEXT_PARTS:
        return fields.text(part.get("text") or "", f"{param}.text")
    if kind in _AUDIO_PARTS:
        return fields.text(part.get("transcript") or "", f"{param}.transcript")
    if kind == _IMAGE_PART:
        return ""
    raise Problem("unsupported", f"Content of type {kind[:40]!r} is not served.", f"{param}.type")


def _only_audio(item: Mapping[str, Any]) -> object | None:
    """The audio of a message that is nothing else."""
    content = item.get("content")
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return None
    part = content[0]
    return part.get("audio") if part.get("type") == "input_audio" else None


def item_delete(request: Request) -> list[Step]:
    return [Ask(c.DeleteItem(fields.required_id(request.payload, "item_id"), request.event_id))]


def item_retrieve(request: Request) -> list[Step]:
    return [Ask(c.RetrieveItem(fields.required_id(request.payload, "item_id"), request.event_id))]


def item_truncate(request: Request) -> list[Step]:
    """What was played of an answer; more than was sent is taken as all of it, never as an error."""
    item_id = fields.required_id(request.payload, "item_id")
    end = fields.required(request.payload, "audio_end_ms")
    end_ms = int(fields.number(end, "audio_end_ms", 0, PLAYED_MS_MAX))
    return [Ask(c.AckPlayback(end_ms, item_id=item_id, truncate=True, event_id=request.event_id))]


HANDLERS: dict[str, Handler] = {
    names.SESSION_UPDATE: session_update,
    names.AUDIO_APPEND: append,
    names.AUDIO_COMMIT: commit,
    names.AUDIO_CLEAR: clear,
    names.OUTPUT_CLEAR: output_clear,
    names.RESPONSE_CREATE: response_create,
    names.RESPONSE_CANCEL: response_cancel,
    names.ITEM_CREATE: item_create,
    names.ITEM_DELETE: item_delete,
    names.ITEM_RETRIEVE: item_retrieve,
    names.ITEM_TRUNCATE: item_truncate,
}
