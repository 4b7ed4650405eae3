"""The TOML file of ``duologue serve``: the same settings as the flags, and what a session begins with."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from adapters.wire.dialects import DIALECTS
from adapters.wire.problems import Problem
from core.session.config import SessionConfig

SECTIONS: dict[str, dict[str, str]] = {
    "server": {
        "host": "host",
        "port": "port",
        "max_sessions": "max_sessions",
        "drain_s": "drain_s",
        "log_level": "log_level",
        "api_keys": "api_key",
        "origins": "origin",
        "tls_cert": "tls_cert",
        "tls_key": "tls_key",
    },
    "store": {"url": "store", "durability": "durability", "patience_s": "store_patience_s"},
    "model": {"name": "model"},
}
"""Section -> key -> the flag's parameter that it stands for. [model] may also have a table ``options``."""


def read_config(path: Path) -> dict[str, Any]:
    """The file as values for click's ``default_map``; the [session] table comes under ``session``. Raises
    click.BadParameter with what is wrong and where."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from None
    session = tables.pop("session", {})
    options = tables.get("model", {}).pop("options", {}) if isinstance(tables.get("model"), dict) else {}
    values: dict[str, Any] = {"session": session}
    for section, table in tables.items():
        known = SECTIONS.get(section)
        if known is None or not isinstance(table, dict):
            raise click.BadParameter(f"{path}: no section [{section}]; there are {', '.join(SECTIONS)}, session")
        for key, value in table.items():
            if key not in known:
                raise click.BadParameter(f"{path}: [{section}] has no {key!r}; it has {', '.join(known)}")
            values[known[key]] = value
    values["model_option"] = [f"{key}={json.dumps(value)}" for key, value in options.items()]
    return values


def session_defaults(session: Mapping[str, Any]) -> dict[str, SessionConfig]:
    """What sessions of each dialect begin with: the [session] table in the words of ``session.update``. Raises
    click.ClickException."""
    defaults = {}
    for name, dialect in DIALECTS.items():
        try:
            defaults[name] = dialect.open_config(session, dialect.defaults)
        except Problem as problem:
            raise click.ClickException(f"[session]: {problem.message}") from None
    return defaults


def model_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs as settings: values are JSON where they read as JSON, else text. Raises click.BadParameter."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE")
        try:
            options[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            options[key.strip()] = value
    return options
