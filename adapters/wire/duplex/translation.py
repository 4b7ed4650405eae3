"""Duplex client events as commands: OpenAI's, with hints, playback, barge-in, acknowledgements and signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.dialect import Answer, Ask, Handler, Request, Step
from adapters.wire.images import of_frames, voice_of_data_url
from adapters.wire.openai import translation as openai
from adapters.wire.openai.translation import PLAYED_MS_MAX, append_audio, cancel
from adapters.wire.problems import Problem
from adapters.wire.schema import names
from adapters.wire.schema.audio import ENCODING_NAMES
from adapters.wire.seen import Seen
from adapters.wire.settings import read_echo
from adapters.wire.updates import (
    COMMON_SETTERS,
    TUNING_SETTERS,
    Draft,
    Rules,
    Setter,
    merge,
    model,
    no_new_voice,
    set_fields,
    turn_detection,
)
from core.ports.store import Body
from core.session import commands as c
from core.session.config import IMAGE, TEXT, AudioFormat, SessionConfig

INPUT_RATE = 16_000
DEFAULTS = SessionConfig(
    input_format=AudioFormat("pcm16", INPUT_RATE),
    output_modalities=("text", "audio"),
    turn_detection=None,
    overlap_policy="listen_only",
)

FRAMES_MAX = 2
"""Images that may come with one append."""

OVERLAP_ACTIONS = {
    **dict.fromkeys(("barge_in", "interrupt", "cancel"), "barge_in"),
    **dict.fromkeys(("listen", "continue", "continue_output", "ack"), "listen"),
    **dict.fromkeys(("drop", "ignore", "silence"), "drop"),
}
"""What an append may say of speech over an answer, by any of its names."""

SIGNALS = frozenset(
    {
        "user_started",
        "user_committed",
        "assistant_started",
        "assistant_done",
        "playback_ack",
        "close",
        "timeout",
    }
)


# -- session settings ---------------------------------------------------------------------------------------------


def _model(draft: Draft, value: Any, param: str) -> None:
    """Where nobody checks names, any opens a session (it is the server's model that answers), and a later change is refused
    by the machine."""
    if draft.rules.served is not None:
        model(draft, value, param)
        return
    name = draft.base.model if value is None else fields.text(value, param, chars_max=fields.ID_CHARS_MAX)
    if name != draft.base.model and name != draft.client.setdefault("requested_model", name):
        draft.changes["model"] = name


def _detection(draft: Draft, value: Any, param: str) -> None:
    """Who detects turns also decides whether speech interrupts; ``overlap_policy`` beside it has the last word."""
    turn_detection(draft, value, param)
    draft.changes["overlap_policy"] = "listen_only" if value is None else "barge_in_on_speech"


def _audio(draft: Draft, value: Any, param: str) -> None:
    COMMON_SETTERS["audio"](draft, value, param)
    side = value.get("input")
    if isinstance(side, dict) and "turn_detection" in side:
        _detection(draft, side["turn_detection"], f"{param}.input.turn_detection")


def _extra_body(draft: Draft, value: Any, param: str) -> None:
    """Extensions of the session that clients of OpenAI's SDKs can only put here. Unknown ones are another model's."""
    set_fields(draft, fields.table(value, param), EXTRA_SETTERS, param)


def _auto_response(draft: Draft, value: Any, param: str) -> None:
    draft.client["auto_response"] = fields.flag(value, param)


EXTRA_SETTERS: dict[str, Setter] = {"auto_response": _auto_response, **TUNING_SETTERS}

SETTERS: dict[str, Setter] = {
    **COMMON_SETTERS,
    "model": _model,
    "audio": _audio,
    "turn_detection": _detection,
    "max_tokens": COMMON_SETTERS["max_output_tokens"],
    "response_format": COMMON_SETTERS["output_audio_format"],
    "auto_response": _auto_response,
    "extra_body": _extra_body,
    **TUNING_SETTERS,
}
RULES = Rules(input_rate=INPUT_RATE, output_rate=24_000, setters=SETTERS)


def session_body(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a session.update: its ``session`` object, or its own keys."""
    session = payload.get("session")
    if session is not None:
        return fields.table(session, "session")
    return {key: value for key, value in payload.items() if key not in ("type", "event_id", "session", "session_id")}


def reference_voice(changes: Mapping[str, Any]) -> list[Ask]:
    """The voice that a session is opened with: its own field or the extension's."""
    extra = changes.get("extra_body")
    for where, param in ((changes, "session"), (extra if isinstance(extra, dict) else {}, "session.extra_body")):
        if where.get("ref_audio_path") is not None:
            text = "A voice is sent as a data URL in 'ref_audio'; no path of the server's is read."
            raise Problem("unsupported_ref_audio_path", text, f"{param}.ref_audio_path")
        for name in ("tts_ref_audio", "ref_audio"):
            if where.get(name) is not None:
                return voice_of_data_url(where[name], f"{param}.{name}")
    return []


def session_update(request: Request) -> list[Step]:
    changes = session_body(request.payload)
    no_new_voice(changes)
    return [Ask(c.UpdateConfig(merge(request.state.config, changes, request.rules), request.event_id))]


# -- input --------------------------------------------------------------------------------------------------------


def append(request: Request) -> list[Step]:
    payload = request.payload
    _same_format(payload, request.state.config.input_format)
    frames = _video_frames(request)
    param = "audio" if payload.get("audio") is not None else "delta"
    value = payload.get(param, "" if frames else None)
    if value is None:
        raise Problem("missing_required_parameter", "'audio' is missing.", "audio")
    measure = request.state.config.turn_detection is None
    steps = append_audio(request, value, param, speech_hint(payload), measure=measure, images=frames)
    judged = overlap_judged(payload)
    return [*steps, Ask(judged)] if judged is not None else steps


def overlap_judged(payload: Mapping[str, Any]) -> c.JudgeOverlap | None:
    """The client's own word on speech over an answer, if it has one: an action goes before a flag."""
    action = payload.get("overlap_action", payload.get("overlap"))
    if isinstance(action, str) and action in OVERLAP_ACTIONS:
        return c.JudgeOverlap(OVERLAP_ACTIONS[action], "client_overlap_action")
    if payload.get("force_barge_in") is True:
        return c.JudgeOverlap("barge_in", "client_force_barge_in")
    if payload.get("force_listen") is True:
        return c.JudgeOverlap("listen", "client_force_listen")
    return None


def _video_frames(request: Request) -> list[tuple[c.ImageBody, Body]]:
    frames = request.payload.get("video_frames")
    if not frames:
        return []
    if IMAGE not in request.state.inputs:
        raise Problem("invalid_input_modality", "This model does not see; send no 'video_frames'.", "video_frames")
    return of_frames(frames, "video_frames", FRAMES_MAX)


def _same_format(payload: Mapping[str, Any], present: AudioFormat) -> None:
    """An append may name its format; another one than the session's is set by session.update first."""
    for key in ("format", "input_audio_format"):
        name = payload.get(key)
        shape = {"type": name} if isinstance(name, str) else fields.table(name, key) if name is not None else {}
        if name is not None and ENCODING_NAMES.get(str(shape.get("type"))) != present.encoding:
            text = f"'{key}' is not the session's input format, {present.encoding}; send session.update first."
            raise Problem("unsupported_audio_format", text, key)
        _same_rate(shape.get("rate"), f"{key}.rate", present)
    for key in ("sample_rate_hz", "sample_rate"):
        _same_rate(payload.get(key), key, present)


def _same_rate(value: object, param: str, present: AudioFormat) -> None:
    if value is not None and fields.whole(value, param, 1, 1_000_000) != present.rate:
        text = f"'{param}' is not the session's input rate, {present.rate}; send session.update first."
        raise Problem("unsupported_audio_format", text, param)


def speech_hint(payload: Mapping[str, Any]) -> bool | None:
    """What the client knows of speech in this chunk: a flag, else a probability, else nothing."""
    vad = payload.get("vad")
    detail: Mapping[str, Any] = vad if isinstance(vad, dict) else {}
    for flag in (payload.get("is_speech"), payload.get("speech"), detail.get("is_speech")):
        if isinstance(flag, bool):
            return flag
    for chance in (
        payload.get("speech_probability"),
        detail.get("speech_probability"),
        detail.get("probability"),
    ):
        if isinstance(chance, (int, float)) and not isinstance(chance, bool):
            return chance >= 0.5
    return None


def commit(request: Request) -> list[Step]:
    """Asks for an answer where the client says so, or where the session answers by itself."""
    payload = request.payload
    if payload.get("final") is not None:
        fields.flag(payload["final"], "final")
    wanted = None
    for key in ("response_create", "create_response"):
        if payload.get(key) is not None:
            wanted = fields.flag(payload[key], key)
    if _answers_by_itself(request.state.config) or (wanted is None and payload["type"] == "input.commit"):
        wanted = True
    return [Ask(c.CommitInput(wanted, request.event_id))]


def _answers_by_itself(config: SessionConfig) -> bool:
    """A session in which the model decides whether to answer what is committed. With a detector, that decides: a commit
    beside it closes what the detector left, often nothing but silence."""
    client, _ = read_echo(config)
    return client.get("auto_response") is True and config.turn_detection is None


def text_append(request: Request) -> list[Step]:
    """Words of the turn that is being said; the next commit closes it."""
    if TEXT not in request.state.inputs:
        raise Problem("native_text_append_unsupported", "This session's model takes no text.", "type")
    text = fields.text(fields.required(request.payload, "text"), "text")
    return [Ask(c.AppendPart(TEXT, text=text, event_id=request.event_id))]


# -- cuts, playback, signals --------------------------------------------------------------------------------------


def response_cancel(request: Request) -> list[Step]:
    return [Ask(cancel(request, "client_cancelled"))]


def barge_in(request: Request) -> list[Step]:
    return [Ask(attrs.evolve(cancel(request, "barge_in"), always=True))]


def input_cancel(request: Request) -> list[Step]:
    return [Ask(attrs.evolve(cancel(request, "client_cancelled", quiet=True, clear_input=True), always=True))]


def playback_ack(request: Request) -> list[Step]:
    payload = request.payload
    played = fields.number(fields.required(payload, "played_ms"), "played_ms", 0, PLAYED_MS_MAX)
    committed = payload.get("committed_ms")
    truncate = payload.get("truncate")
    return [
        Ask(
            c.AckPlayback(
                int(played),
                None if committed is None else int(fields.number(committed, "committed_ms", 0, PLAYED_MS_MAX)),
                fields.optional_id(payload, "response_id"),
                fields.optional_id(payload, "item_id"),
                truncate is not None and fields.flag(truncate, "truncate"),
                request.event_id,
            )
        )
    ]


def session_close(request: Request) -> list[Step]:
    reason = request.payload.get("reason")
    text = "client_close" if reason is None else fields.text(reason, "reason", chars_max=100)
    return [Ask(c.Close(text, request.event_id))]


def session_resume(request: Request) -> list[Step]:
    raise Problem("unsupported_session_resume", "session.resume is only understood as the first frame.", "type")


def heartbeat(request: Request) -> list[Step]:
    """Answered by the transport; the machine takes it for a sign of life."""
    return [Answer({"type": names.SESSION_HEARTBEAT_ACK, "session_id": request.state.session_id}), Ask(c.Touch())]


def event_ack(request: Request) -> list[Step]:
    """Checked, and nothing more: the replay window is bounded by time and size, not by what clients have."""
    value = request.payload.get(names.NUMBER)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= request.state.head:
        text = f"'{names.NUMBER}' is a number between 0 and {request.state.head}."
        raise Problem("invalid_event_ack", text, names.NUMBER)
    return []


def turn_signal(request: Request) -> list[Step]:
    """Either another event in disguise, or a remark that is answered and changes nothing."""
    event = fields.text(fields.required(request.payload, "event"), "event", chars_max=100)
    inner = request.payload.get("payload") or {}
    if event in ROUTED:
        payload = {**fields.table(inner, "payload"), "type": event}
        return ROUTED[event](Request(payload, request.event_id, request.state, request.rules))
    if event not in SIGNALS:
        raise Problem("bad_event", f"No turn signal of that name is known: {event!r}.", "event")
    return [Answer(turn_event(request.state, event))]


def turn_event(state: Seen, event: str) -> dict[str, Any]:
    """The answer to a signal: where the conversation stands."""
    return {
        "type": names.TURN_EVENT,
        "session_id": state.session_id,
        "event": event,
        "turn_state": state.turn_state,
        "epoch": state.epoch,
    }


HANDLERS: dict[str, Handler] = {
    **openai.HANDLERS,
    names.SESSION_UPDATE: session_update,
    names.AUDIO_APPEND: append,
    names.AUDIO_COMMIT: commit,
    names.RESPONSE_CANCEL: response_cancel,
    names.PLAYBACK_ACK: playback_ack,
    names.BARGE_IN: barge_in,
    names.INPUT_CANCEL: input_cancel,
    names.TURN_SIGNAL: turn_signal,
    names.SESSION_CLOSE: session_close,
    names.SESSION_RESUME: session_resume,
    names.SESSION_HEARTBEAT: heartbeat,
    names.SESSION_EVENT_ACK: event_ack,
    "input.text.append": text_append,
}

ROUTED: dict[str, Handler] = {
    name: HANDLERS[name]
    for name in (
        names.INPUT_CANCEL,
        names.BARGE_IN,
        names.RESPONSE_CANCEL,
        names.SESSION_UPDATE,
        names.ITEM_CREATE,
        names.ITEM_DELETE,
        names.ITEM_RETRIEVE,
        names.ITEM_TRUNCATE,
    )
}
