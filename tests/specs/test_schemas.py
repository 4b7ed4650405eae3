"""The schemas are what the types say, what is written and sent is what the schemas say, and what is not is found out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.wire.schema import names
from core.session.events import EVENT_TYPES
from tests.specs.test_golden import LOGS, replay
from tools import schemas

KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def faults(value: Any, schema: schemas.Schema, root: schemas.Schema, where: str = "$") -> Iterator[str]:
    """What is wrong with ``value``; understands what msgspec and tools.schemas write."""
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, where)
    if "const" in schema and value != schema["const"]:
        yield f"{where} is not {schema['const']!r}"
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{where} is no {kind}"
        return
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is below {schema['minimum']}"
    for inner in schema.get("allOf", ()):
        yield from faults(value, inner, root, where)
    if "anyOf" in schema and all(any(faults(value, inner, root, where)) for inner in schema["anyOf"]):
        yield f"{where} is none of what it may be"
    if isinstance(value, dict):
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from faults(value[name], inner, root, f"{where}.{name}")
    if isinstance(value, list):
        firsts = schema.get("prefixItems", ())
        for place, one in enumerate(value):
            inner = firsts[place] if place < len(firsts) else schema.get("items", {})
            yield from faults(one, inner or {}, root, f"{where}[{place}]")


def test_the_schemas_are_current() -> None:
    assert [path.name for path in schemas.stale()] == [], "run `make format`"


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_golden_logs_and_what_they_say_on_the_wire_are_as_the_schemas_say(log: Any) -> None:
    root = schemas.log_schema()
    content = log.read_bytes()
    for line in content.splitlines():
        row = json.loads(line)
        schema = root["anyOf"][list(EVENT_TYPES).index(row["type"])]
        assert list(faults(row, schema, root)) == []
    wire = schemas.wire_schema()
    by_name = dict(zip(sorted(schemas.FROM_SERVER), wire["$defs"]["server"]["anyOf"], strict=True))
    frames = replay(content).frames
    assert frames
    for frame in frames:
        payload = json.loads(json.dumps(frame.payload))
        if log.stem.endswith("_openai"):  # whose stream is the same, and does not show its numbers
            payload[names.NUMBER] = frame.number
        assert list(faults(payload, by_name[payload["type"]], wire)) == []


def test_what_is_wrong_is_found_out() -> None:
    root = schemas.log_schema()
    line = {"position": 1, "epoch": 0, "at_ns": 5, "type": "paused", "version": 1, "event": {}}
    assert list(faults(line, root, root)) == []
    for wrong in ({"position": 0}, {"type": "gone"}, {"event": {"event_id": 7}}, {"version": "1"}, {"at_ns": None}):
        assert list(faults({**line, **wrong}, root, root)) != [], wrong


def test_every_event_has_a_schema() -> None:
    told = {line["properties"]["type"]["const"] for line in schemas.log_schema()["anyOf"]}
    assert told == set(EVENT_TYPES)
    assert {names.RESPONSE_DONE, names.SESSION_UPDATED, names.SESSION_QUEUED} <= schemas.FROM_SERVER
    assert names.AUDIO_APPEND not in schemas.FROM_SERVER
