"""Checked reading of a client's JSON. Every failure is a Problem that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adapters.wire.problems import Problem

FRAME_BYTES_MAX = 15 * 1024 * 1024
"""The largest client event, as OpenAI and vLLM-Omni have it."""

DEPTH_MAX = 32
"""Nesting of objects and arrays that a client event may have."""

EVENT_ID_CHARS_MAX = 512
ID_CHARS_MAX = 256
TEXT_CHARS_MAX = 1_000_000
WHOLE_SHOWN_MAX = 10**18


def parse_event(frame: str | bytes) -> dict[str, Any]:
    """One text frame -> a JSON object with a string ``type``. Raises Problem."""
    if isinstance(frame, bytes):
        raise Problem("bad_event", "Binary frames have no meaning here; send JSON text with base64 audio.")
    if len(frame) > FRAME_BYTES_MAX:
        raise Problem("event_too_large", f"An event may have {FRAME_BYTES_MAX} bytes; this one has {len(frame)}.")
    payload = parse_json(frame)
    event_id = payload.get("event_id")
    if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= EVENT_ID_CHARS_MAX):
        raise Problem("bad_event", f"'event_id' is a string of at most {EVENT_ID_CHARS_MAX} characters.", "event_id")
    if not isinstance(payload.get("type"), str):
        raise Problem("bad_event", "An event names its 'type' with a string.", "type", event_id)
    if _deeper_than(payload, DEPTH_MAX):
        raise Problem("invalid_json", f"The JSON is nested more than {DEPTH_MAX} deep.", None, event_id)
    return payload


def parse_json(text: str | bytes) -> dict[str, Any]:
    """JSON text -> an object. Raises Problem."""
    try:
        payload = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Problem("invalid_json", f"The frame is not JSON: {error}.") from None
    except RecursionError:
        raise Problem("invalid_json", f"The JSON is nested more than {DEPTH_MAX} deep.") from None
    if not isinstance(payload, dict):
        raise Problem("bad_event", f"An event is a JSON object, not {json_kind(payload)}.")
    return payload


def _deeper_than(value: object, limit: int) -> bool:
    children: Any
    if isinstance(value, dict):
        children = value.values()
    elif isinstance(value, list):
        children = value
    else:
        return False
    return limit == 0 or any(_deeper_than(child, limit - 1) for child in children if isinstance(child, (dict, list)))


def json_kind(value: object) -> str:
    """What JSON calls a decoded value, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong(param: str, expected: str, value: object) -> Problem:
    """The Problem of a field with a value of the wrong kind."""
    return Problem("invalid_value", f"'{param}' is {expected}, not {json_kind(value)}.", param)


def text(value: object, param: str, *, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A string."""
    if not isinstance(value, str):
        raise wrong(param, "a string", value)
    if len(value) > chars_max:
        raise Problem("invalid_value", f"'{param}' has more than {chars_max} characters.", param)
    return value


def flag(value: object, param: str) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise wrong(param, "a boolean", value)
    return value


def number(value: object, param: str, low: float, high: float) -> float:
    """A finite number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(param, "a number", value)
    if not low <= value <= high:  # before any conversion: a JSON integer may be too large for a float; NaN is nowhere
        shown = f"{value:g}" if isinstance(value, float) or abs(value) < WHOLE_SHOWN_MAX else "a number that large"
        raise Problem("invalid_value", f"'{param}' lies between {low:g} and {high:g}, not {shown}.", param)
    return float(value)


def whole(value: object, param: str, low: int, high: int) -> int:
    """A whole number within [low, high]; 3.0 counts as 3."""
    exact = number(value, param, low, high)
    if exact != int(exact):
        raise Problem("invalid_value", f"'{param}' is a whole number, not {exact:g}.", param)
    return int(exact)


def table(value: object, param: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise wrong(param, "an object", value)
    return value


def array(value: object, param: str) -> list[Any]:
    """An array."""
    if not isinstance(value, list):
        raise wrong(param, "an array", value)
    return value


def required(payload: Mapping[str, Any], key: str, param: str | None = None) -> object:
    """A field that must be there and not null."""
    value = payload.get(key)
    if value is None:
        raise Problem("missing_required_parameter", f"'{param or key}' is missing.", param or key)
    return value


def optional_id(payload: Mapping[str, Any], key: str, param: str | None = None) -> str | None:
    """An id that may be absent or null."""
    value = payload.get(key)
    return None if value is None else text(value, param or key, chars_max=ID_CHARS_MAX)


def required_id(payload: Mapping[str, Any], key: str, param: str | None = None) -> str:
    """An id that must be there."""
    found = text(required(payload, key, param), param or key, chars_max=ID_CHARS_MAX)
    if not found:
        raise Problem("invalid_value", f"'{param or key}' is empty.", param or key)
    return found
