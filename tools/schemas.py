"""The JSON Schemas in specs/schemas/ are generated from the types: the log's lines, and the events on the wire.

usage: python -m tools.schemas            writes them
       python -m tools.schemas --check    exit status 1 if one is not what the types say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from adapters.wire.dialects import DUPLEX
from adapters.wire.schema import names, shapes
from core.session.events import EVENT_TYPES, SCHEMA_VERSIONS
from tools import generated

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "specs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

SHAPES: Mapping[str, type] = {
    names.SESSION_CREATED: shapes.SessionCreated,
    names.SESSION_RESUME: shapes.SessionResume,
    names.SESSION_RESUMED: shapes.SessionResumed,
    names.PLAYBACK_ACK: shapes.PlaybackAck,
}
"""Events of which the stream's promises rest on more than the type and the number."""

FROM_SERVER: frozenset[str] = frozenset(
    value
    for name, value in vars(names).items()
    if name.isupper()
    and isinstance(value, str)
    and value not in DUPLEX.handlers
    and not name.startswith("STATUS_")
    and name != "NUMBER"
) | {names.SESSION_UPDATED, names.ERROR}


def components(types: Mapping[str, type]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """(name -> schema, the definitions that they refer to)."""
    schemas, defs = msgspec.json.schema_components(list(types.values()), ref_template="#/$defs/{name}")
    return dict(zip(types, schemas, strict=True)), dict(defs)


def log_schema() -> Schema:
    """One line of a log as it is exported: an event at its place."""
    events, defs = components(EVENT_TYPES)
    whole = {"type": "integer", "minimum": 0}
    place = {"position": {"type": "integer", "minimum": 1}, "epoch": whole, "at_ns": whole}
    lines = [
        {
            "type": "object",
            "required": [*place, "type", "version", "event"],
            "properties": {
                **place,
                "type": {"const": tag},
                "version": {"const": SCHEMA_VERSIONS[tag]},
                "event": events[tag],
            },
        }
        for tag in EVENT_TYPES
    ]
    return {"$schema": DRAFT, "title": "A line of a session's log", "anyOf": lines, "$defs": defs}


def wire_schema() -> Schema:
    """What the duplex dialect's clients and servers send. Further fields are allowed everywhere."""
    known, defs = components(SHAPES)
    errors, error_defs = components({names.ERROR: shapes.ErrorBody})
    client = sorted(DUPLEX.handlers)
    return {
        "$schema": DRAFT,
        "title": "Events of the duplex dialect",
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {
            **defs,
            **error_defs,
            "client": {"anyOf": [_from_client(name, known) for name in client]},
            "server": {"anyOf": [_from_server(name, known, errors[names.ERROR]) for name in sorted(FROM_SERVER)]},
        },
    }


def _from_client(name: str, known: Mapping[str, Schema]) -> Schema:
    own = {"type": "object", "required": ["type"], "properties": {"type": {"const": name}}}
    return {"allOf": [own, known[name]]} if name in known else own


def _from_server(name: str, known: Mapping[str, Schema], error: Schema) -> Schema:
    properties: Schema = {"type": {"const": name}, "event_id": {"type": "string"}}
    required = ["type"]
    if name not in names.UNNUMBERED and name not in (names.ERROR, names.TURN_EVENT):
        properties[names.NUMBER] = {"type": "integer", "minimum": 1}
        required.append(names.NUMBER)
    if name == names.ERROR:
        properties["error"] = error
        required.append("error")
    own = {"type": "object", "required": required, "properties": properties}
    return {"allOf": [own, known[name]]} if name in known else own


def files() -> dict[Path, str]:
    """Path -> what the file should hold."""
    made = {"log.schema.json": log_schema(), "wire.schema.json": wire_schema()}
    return {
        FOLDER / name: json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        for name, schema in made.items()
    }


def stale() -> list[Path]:
    """The schemas that are missing or not what the code says."""
    return generated.stale(files())


def main(arguments: list[str]) -> int:
    """Write the schemas, or with --check only compare."""
    return generated.write_or_check(files(), "the code", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
