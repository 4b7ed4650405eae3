"""The TOML file of ``duologue serve``: the same settings as the flags, and what a session begins with."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs
import click
from click.core import ParameterSource

from adapters.wire.dialects import DIALECTS
from adapters.wire.problems import Problem
from adapters.wire.served import Served
from core.session.config import SessionConfig

CONFIG_PATH = "duologue.config"
"""Key of click's ``meta`` under which the file's path lies."""

SECTIONS: dict[str, dict[str, str]] = {
    "server": {
        "host": "host",
        "port": "port",
        "max_sessions": "max_sessions",
        "queue_max": "queue_max",
        "sessions_per_key": "sessions_per_key",
        "opens_per_key": "opens_per_key",
        "events_per_key": "events_per_key",
        "drain_s": "drain_s",
        "silent_s": "silent_s",
        "log_level": "log_level",
        "api_keys": "api_key",
        "origins": "origin",
        "tls_cert": "tls_cert",
        "tls_key": "tls_key",
    },
    "store": {"url": "store", "durability": "durability", "patience_s": "store_patience_s"},
    "model": {"name": "model", "aliases": "model_alias"},
    "workers": {"count": "workers", "ray": "ray", "gpus": "worker_gpus", "cpus": "worker_cpus"},
}
"""Section -> key -> the flag's parameter that it stands for. [model] may also have a table ``options``."""

_WHOLE, _NUMBER = ((int,), "a whole number"), ((int, float), "a number")
_TEXT, _TEXTS = ((str,), "text in quotes"), ((list,), 'a list of texts: ["...", "..."]')
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("host", "log_level", "tls_cert", "tls_key", "url", "durability", "name", "ray"), _TEXT),
    **dict.fromkeys(("api_keys", "origins", "aliases"), _TEXTS),
    **dict.fromkeys(("drain_s", "silent_s", "patience_s", "gpus", "cpus"), _NUMBER),
    "count": ((int, str), 'a number, or "auto"'),
}
"""Key -> its types in TOML, and their name; others are whole numbers. click alone turns 9000.5 into 9000 silently."""

LIMITS = frozenset(
    {
        "disconnect_grace_ms",
        "max_lane_lead_ms",
        "max_pending_commits",
        "max_pending_input_bytes",
        "max_session_ms",
        "pause_watchdog_ms",
        "replay_window_bytes",
        "replay_window_ms",
    }
)
"""Fields of SessionConfig that only the server's operator sets: no ``session.update`` reaches them."""


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
    if not isinstance(session, dict) or not isinstance(options, dict):
        name = "[model] options" if isinstance(session, dict) else "session"
        raise click.BadParameter(f"{path}: {name} must be a table: key = value")
    values: dict[str, Any] = {"session": session}
    for section, table in tables.items():
        known = SECTIONS.get(section)
        if known is None or not isinstance(table, dict):
            raise click.BadParameter(f"{path}: no section [{section}]; there are {', '.join(SECTIONS)}, session")
        for key, value in table.items():
            if key not in known:
                raise click.BadParameter(f"{path}: [{section}] has no {key!r}; {_there_is(key, known)}")
            _check_kind(f"{path}: [{section}] {key}", key, value)
            values[known[key]] = value
    values["model_option"] = [f"{key}={json.dumps(value)}" for key, value in options.items()]
    return values


def key_of(flag: str) -> str:
    """``[section] key`` of a flag's parameter."""
    if flag == "model_option":
        return "[model] options"
    return next(
        f"[{section}] {key}" for section, keys in SECTIONS.items() for key, name in keys.items() if name == flag
    )


def check_values(path: Path, values: Mapping[str, Any], ctx: click.Context) -> None:
    """What the flags of the command ask of their values holds for the file's, too. Raises click.BadParameter that names the
    key; click itself would name a flag that nobody has typed."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in values and name != "model_option":
            try:
                parameter.type_cast_value(ctx, values[name])
            except click.BadParameter as error:
                raise click.BadParameter(f"{path}: {key_of(name)}: {error.message}") from None


def said_where(ctx: click.Context, flag: str) -> str:
    """Where the user gave a setting, for messages: the file and its key, an environment variable, or the flag."""
    source = ctx.get_parameter_source(flag)
    if source is ParameterSource.DEFAULT_MAP:
        return f"{ctx.meta[CONFIG_PATH]}: {key_of(flag)}"
    parameter = next(parameter for parameter in ctx.command.params if parameter.name == flag)
    if source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, str):
        return parameter.envvar
    return parameter.opts[0]


def _check_kind(where: str, key: str, value: Any) -> None:
    types, words = KINDS.get(key, _WHOLE)
    items = value if isinstance(value, list) else []
    if not isinstance(value, types) or isinstance(value, bool) or not all(isinstance(item, str) for item in items):
        raise click.BadParameter(f"{where} must be {words}")


def _there_is(key: str, known: Iterable[str]) -> str:
    """What to write instead of ``key``: the names that look like it, else all."""
    close = get_close_matches(key, known)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(sorted(known))}"


def session_defaults(
    session: Mapping[str, Any], served: Served | None = None, where: str = "[session]"
) -> dict[str, SessionConfig]:
    """What sessions of each dialect begin with: the [session] table in the words of ``session.update``, and the limits that
    are the server's alone. ``served``: what may be asked for by name; ``where``: the table's name in messages. Raises
    click.BadParameter."""
    known = LIMITS.union(*(dialect.rules.setters for dialect in DIALECTS.values()))
    unknown = sorted(set(session) - known)
    if unknown:
        raise _wrong(f"{where} has no {unknown[0]!r}; {_there_is(unknown[0], known)}")
    limits = {key: value for key, value in session.items() if key in LIMITS}
    wrong = [key for key, value in limits.items() if type(value) is not int]
    if wrong:
        raise _wrong(f"{where} {wrong[0]} must be a whole number")
    wishes = {key: value for key, value in session.items() if key not in LIMITS}
    defaults = {}
    for name, dialect in DIALECTS.items():
        # Clients that cannot come back are waited for as long as their dialect says.
        own = {key: value for key, value in limits.items() if dialect.resumable or key != "disconnect_grace_ms"}
        try:
            checked = dialect if served is None else dialect.serving(served)
            defaults[name] = checked.open_config(wishes, attrs.evolve(dialect.defaults, **own))
        except Problem as problem:
            raise _wrong(f"{where}: {problem.message}") from None
    return defaults


def _wrong(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="'--config'")


def model_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs as settings: values are JSON where they read as JSON, else text. Raises click.BadParameter."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, value = split_option(pair)
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def split_option(pair: str) -> tuple[str, str]:
    """``KEY=VALUE`` as (key, value). Raises click.BadParameter."""
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--model-option")
    return key.strip(), value
