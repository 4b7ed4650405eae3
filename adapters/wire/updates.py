"""``session.update``: the client's changes merged into the present configuration, all of them or none.

Only fields that are present change. Each has one small setter; what no setter knows is echoed back as it came (the
protocol's own fields that steer nothing here, and a client's extras), except what the server itself computes and what
must not travel back (reference audio, secrets).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from adapters.wire import fields
from adapters.wire.problems import Problem
from adapters.wire.schema.audio import ENCODING_NAMES, G711_ALAW, G711_ULAW, RATE_MAX_HZ, RATE_MIN_HZ
from adapters.wire.served import Served
from adapters.wire.settings import EAGERNESS_SILENCE_MS, TELEPHONE_RATE, read_echo, write_echo
from adapters.wire.tools import tool_choice_of, tools_of
from core.session.config import AudioFormat, SessionConfig, TurnDetection
from core.session.decisions.items import wrong_setting

ECHO_BYTES_MAX = 256 * 1024
OUTPUT_TOKENS_MAX = 1_000_000
HOUR_MS = 3_600_000

REFERENCE_VOICE = ("tts_ref_audio", "ref_audio", "ref_audio_path")
"""Fields of a voice to speak with."""

NEVER_ECHOED = frozenset(
    {
        *REFERENCE_VOICE,
        "extra_body",
        "client_secret",
        "initial_user_text",
        "id",
        "object",
        "state",
        "turn_state",
        "epoch",
        "active_response_id",
        "playback",
        "capabilities",
        "unit_ms",
        "recommended_prebuffer_ms",
        "supports_image_input",
        "supports_tool_calls",
        "expires_at",
        "session_id",
        "playback_commit_policy",
        "response_format",
        "max_tokens",
    }
)
"""Computed here, secret, or large: a client that sends a whole session object back changes nothing by these."""


@attrs.define
class Draft:
    """A configuration in the making. ``changes`` are fields of SessionConfig, ``client`` is what is echoed."""

    base: SessionConfig
    rules: Rules
    client: dict[str, Any]
    changes: dict[str, Any] = attrs.field(factory=dict)

    def now(self, field: str) -> Any:
        """A setting as it would be if the update ended here."""
        return self.changes.get(field, getattr(self.base, field))


Setter = Callable[[Draft, Any, str], None]
"""(draft, the client's value, the field's name for errors) -> None. Raises Problem."""


@attrs.frozen
class Rules:
    """What differs between dialects: rates that a bare format name means, and setters of their own. ``served``: what a
    server has to choose from, None where any name will do."""

    input_rate: int
    output_rate: int
    setters: Mapping[str, Setter]
    served: Served | None = None


def no_new_voice(changes: Mapping[str, Any]) -> None:
    """Raises Problem for a reference voice in a session that stands already: it is opened with one or without."""
    extra = changes.get("extra_body")
    for where, param in ((changes, "session"), (extra if isinstance(extra, dict) else {}, "session.extra_body")):
        for name in REFERENCE_VOICE:
            if where.get(name) is not None:
                text = (
                    f"'{param}.{name}' is for opening a session: send it in the first event, and no model in the URL."
                )
                raise Problem("ref_audio_update_unsupported", text, f"{param}.{name}")


def merge(config: SessionConfig, changes: Mapping[str, Any], rules: Rules) -> SessionConfig:
    """``config`` with the ``session`` object ``changes`` merged in. Raises Problem, and then nothing has changed."""
    client, runtime = read_echo(config)
    draft = Draft(config, rules, dict(client))
    set_fields(draft, changes, rules.setters, "session")
    echo = write_echo(draft.client, runtime)
    if len(echo.encode()) > ECHO_BYTES_MAX:
        raise Problem("invalid_value", f"'session' has more than {ECHO_BYTES_MAX} bytes of settings.", "session")
    merged = attrs.evolve(config, **draft.changes, echo=echo)
    wrong = wrong_setting(merged)
    if wrong is not None:
        bad, allowed = wrong
        raise Problem("invalid_config", f"'{bad}' has a value that cannot be; it is {allowed}.", bad)
    return merged


def set_fields(draft: Draft, changes: Mapping[str, Any], setters: Mapping[str, Setter], param: str) -> None:
    """Hand each field to its setter, in the setters' order; then keep what is left for the echo (top level only)."""
    for name, setter in setters.items():
        if name in changes:
            setter(draft, changes[name], f"{param}.{name}")
    if param == "session":
        for name, value in changes.items():
            if name not in setters and name not in NEVER_ECHOED:
                draft.client[name] = value


# -- setters ------------------------------------------------------------------------------------------------------


def ignored(draft: Draft, value: Any, param: str) -> None:
    """A field that says nothing new."""


def kind(draft: Draft, value: Any, param: str) -> None:
    if value != "realtime":
        raise Problem("unsupported", f"'{param}' is 'realtime'; other kinds of session are not served.", param)


def model(draft: Draft, value: Any, param: str) -> None:
    """One of the names under which this server's model goes; it answers in any case."""
    if value is not None and draft.rules.served is not None:
        draft.rules.served.check_model(fields.text(value, param, chars_max=fields.ID_CHARS_MAX), param)


def instructions(draft: Draft, value: Any, param: str) -> None:
    draft.changes["instructions"] = "" if value is None else fields.text(value, param)


def modalities(draft: Draft, value: Any, param: str) -> None:
    wanted = set(map(str, fields.array(value, param)))
    if not wanted or wanted - {"text", "audio"}:
        raise Problem("invalid_value", f"'{param}' is a list of 'audio' or 'text'.", param)
    draft.changes["output_modalities"] = ("text", "audio") if len(wanted) == 2 else tuple(wanted)


def audio_format(draft: Draft, value: Any, param: str, field: str, plain_rate: int) -> None:
    """A format by name, or GA's object with a type and a rate."""
    shape = {"type": value} if isinstance(value, str) else fields.table(value, param)
    name = fields.text(fields.required(shape, "type", f"{param}.type"), f"{param}.type")
    encoding = ENCODING_NAMES.get(name)
    if encoding is None:
        raise Problem("unsupported_audio_format", f"'{param}' names no format that is known: {name[:40]!r}.", param)
    present: AudioFormat = draft.now(field)
    usual = TELEPHONE_RATE if encoding in (G711_ULAW, G711_ALAW) else plain_rate
    rate = present.rate if isinstance(value, str) and present.encoding == encoding else usual
    if shape.get("rate") is not None:
        rate = fields.whole(shape["rate"], f"{param}.rate", RATE_MIN_HZ, RATE_MAX_HZ)
    draft.changes[field] = AudioFormat(encoding, rate)


def input_format(draft: Draft, value: Any, param: str) -> None:
    audio_format(draft, value, param, "input_format", draft.rules.input_rate)


def output_format(draft: Draft, value: Any, param: str) -> None:
    audio_format(draft, value, param, "output_format", draft.rules.output_rate)


def input_rate(draft: Draft, value: Any, param: str) -> None:
    rate = fields.whole(value, param, RATE_MIN_HZ, RATE_MAX_HZ)
    draft.changes["input_format"] = attrs.evolve(draft.now("input_format"), rate=rate)


def output_rate(draft: Draft, value: Any, param: str) -> None:
    rate = fields.whole(value, param, RATE_MIN_HZ, RATE_MAX_HZ)
    draft.changes["output_format"] = attrs.evolve(draft.now("output_format"), rate=rate)


def voice(draft: Draft, value: Any, param: str) -> None:
    """By name, or as an object with the id of one."""
    if isinstance(value, dict):
        value = fields.required(value, "id", f"{param}.id")
    name = "" if value is None else fields.text(value, param, chars_max=fields.ID_CHARS_MAX)
    if draft.rules.served is not None and name != "default":
        name = draft.rules.served.voice(name, param)
    draft.changes["voice"] = "" if name == "default" else name


def output_tokens(draft: Draft, value: Any, param: str) -> None:
    unlimited = value is None or value == "inf"
    draft.changes["max_output_tokens"] = None if unlimited else fields.whole(value, param, 1, OUTPUT_TOKENS_MAX)


def temperature(draft: Draft, value: Any, param: str) -> None:
    """The models here sample as their own settings say; a client that needs another temperature must be told."""
    if value is not None:
        raise Problem("unsupported", f"'{param}' is not served: a model samples in its own way. Leave it out.", param)


def echoed(name: str) -> Setter:
    """A setter for what is only given back, under ``name``."""

    def keep(draft: Draft, value: Any, param: str) -> None:
        draft.client[name] = value

    return keep


def tools(draft: Draft, value: Any, param: str) -> None:
    """For the model, and for the echo as they came."""
    draft.changes["tools"] = tools_of(value or [], param)
    draft.client["tools"] = value or []


def tool_choice(draft: Draft, value: Any, param: str) -> None:
    draft.changes["tool_choice"] = tool_choice_of("auto" if value is None else value, param)
    draft.client["tool_choice"] = "auto" if value is None else value


def speed(draft: Draft, value: Any, param: str) -> None:
    draft.client["speed"] = 1.0 if value is None else fields.number(value, param, 0.25, 1.5)


def turn_detection(draft: Draft, value: Any, param: str) -> None:
    """null, or an object whose missing fields are those of the present detection of the same type."""
    if value is None:
        draft.changes["turn_detection"] = None
        return
    shape = fields.table(value, param)
    name = fields.text(shape.get("type", "server_vad"), f"{param}.type")
    if name not in ("server_vad", "semantic_vad"):
        raise Problem(
            "unsupported_turn_detection", f"'{param}.type' is 'server_vad' or 'semantic_vad'.", f"{param}.type"
        )
    if shape.get("idle_timeout_ms") is not None:
        text = f"'{param}.idle_timeout_ms' is not served; leave it out or null."
        raise Problem("unsupported_turn_detection", text, f"{param}.idle_timeout_ms")
    present = draft.now("turn_detection")
    base = present if present is not None and present.type == name else TurnDetection(type=name)
    changes: dict[str, Any] = {}
    if shape.get("threshold") is not None:
        changes["threshold"] = fields.number(shape["threshold"], f"{param}.threshold", 0.0, 1.0)
    for field, low, high in (("prefix_padding_ms", 0, 2_000), ("silence_duration_ms", 1, 10_000)):
        if shape.get(field) is not None:
            changes[field] = fields.whole(shape[field], f"{param}.{field}", low, high)
    for field in ("create_response", "interrupt_response"):
        if shape.get(field) is not None:
            changes[field] = fields.flag(shape[field], f"{param}.{field}")
    if name == "semantic_vad":
        changes["silence_duration_ms"] = _eagerness(draft, shape, f"{param}.eagerness")
    draft.changes["turn_detection"] = attrs.evolve(base, **changes)


def _eagerness(draft: Draft, shape: Mapping[str, Any], param: str) -> int:
    eagerness = fields.text(shape.get("eagerness") or draft.client.get("eagerness", "auto"), param, chars_max=64)
    if eagerness not in EAGERNESS_SILENCE_MS:
        raise Problem("invalid_value", f"'{param}' is one of {', '.join(EAGERNESS_SILENCE_MS)}.", param)
    draft.client["eagerness"] = eagerness
    return EAGERNESS_SILENCE_MS[eagerness]


def milliseconds(field: str, low: int, high: int, optional: bool = False) -> Setter:
    """A setter for a whole number of ms."""

    def put(draft: Draft, value: Any, param: str) -> None:
        draft.changes[field] = None if optional and value is None else fields.whole(value, param, low, high)

    return put


def whole(field: str, low: int = 1) -> Setter:
    """A setter for a whole number of tokens."""

    def put(draft: Draft, value: Any, param: str) -> None:
        draft.changes[field] = fields.whole(value, param, low, OUTPUT_TOKENS_MAX)

    return put


def idle_timeout(draft: Draft, value: Any, param: str) -> None:
    draft.changes["idle_timeout_ms"] = int(fields.number(value, param, 1.0, 24 * 3_600.0) * 1000)


def silence_rms(draft: Draft, value: Any, param: str) -> None:
    draft.changes["overlap_silence_rms"] = fields.number(value, param, 0.0, 1.0)


def word(field: str) -> Setter:
    """A setter for one of a few words; which ones, the machine's own check knows."""

    def put(draft: Draft, value: Any, param: str) -> None:
        draft.changes[field] = fields.text(value, param, chars_max=64)

    return put


def audio(draft: Draft, value: Any, param: str) -> None:
    """GA's nested ``audio`` object."""
    shape = fields.table(value, param)
    for side, setters in (("input", INPUT_SETTERS), ("output", OUTPUT_SETTERS)):
        if shape.get(side) is not None:
            set_fields(draft, fields.table(shape[side], f"{param}.{side}"), setters, f"{param}.{side}")


INPUT_SETTERS: dict[str, Setter] = {
    "format": input_format,
    "sample_rate_hz": input_rate,
    "turn_detection": turn_detection,
    "transcription": echoed("input_audio_transcription"),
    "noise_reduction": echoed("input_audio_noise_reduction"),
}

OUTPUT_SETTERS: dict[str, Setter] = {
    "format": output_format,
    "sample_rate_hz": output_rate,
    "voice": voice,
    "speed": speed,
}

TUNING_SETTERS: dict[str, Setter] = {
    "overlap_policy": word("overlap_policy"),
    "overlap_short_ack_ms": milliseconds("overlap_short_ack_ms", 0, 60_000),
    "overlap_barge_in_ms": milliseconds("overlap_barge_in_ms", 0, 60_000),
    "overlap_silence_rms": silence_rms,
    "unacked": word("unacked"),
    "context_on_barge_in": word("context_on_barge_in"),
    "sliding_window_mode": word("window_mode"),
    "basic_window_high_tokens": whole("window_high_tokens"),
    "basic_window_low_tokens": whole("window_low_tokens"),
    "context_previous_max_tokens": whole("window_previous_tokens", low=0),
    "idle_timeout_s": idle_timeout,
    "max_client_lead_ms": milliseconds("max_client_lead_ms", 100, HOUR_MS, optional=True),
}

COMMON_SETTERS: dict[str, Setter] = {
    "type": kind,
    "model": model,
    "instructions": instructions,
    "output_modalities": modalities,
    "modalities": modalities,
    "input_audio_format": input_format,
    "output_audio_format": output_format,
    "sample_rate": input_rate,
    "sample_rate_hz": input_rate,
    "audio": audio,
    "voice": voice,
    "turn_detection": turn_detection,
    "max_output_tokens": output_tokens,
    "max_response_output_tokens": output_tokens,
    "temperature": temperature,
    "tools": tools,
    "tool_choice": tool_choice,
    "speed": speed,
    **TUNING_SETTERS,
}


def json_size(value: object) -> int:
    """Bytes of a value as JSON."""
    return len(msgspec.json.encode(value))
