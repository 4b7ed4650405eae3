"""What a server must know of a dialect: how its frames become commands, how its log becomes frames, what it says apart.

Translation is pure: (text, state) -> steps. A step is a command for the session, an answer of the transport (unnumbered,
not in the log), or an acknowledgement of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.problems import Problem, problem_event
from adapters.wire.updates import Rules, merge
from core.ports.projection import Projection
from core.ports.store import Body
from core.session import commands as c
from core.session.config import SessionConfig
from core.session.state import SessionState


@attrs.frozen
class Ask:
    """A command for the session, with the bytes that it names."""

    command: c.Command
    bodies: tuple[Body, ...] = ()


@attrs.frozen
class Answer:
    """An event that the transport itself answers with."""

    payload: Mapping[str, Any]


@attrs.frozen
class Acknowledged:
    """The client has everything up to ``number``."""

    number: int


Step = Ask | Answer | Acknowledged


@attrs.frozen
class Request:
    """One client event in its session. ``head`` is the last number of the stream."""

    payload: Mapping[str, Any]
    event_id: str | None
    state: SessionState
    head: int
    rules: Rules


Handler = Callable[[Request], list[Step]]


@attrs.frozen
class Dialect:
    """One wire dialect. ``defaults`` is the configuration of a session whose client asks for nothing."""

    name: str
    version: int
    defaults: SessionConfig
    rules: Rules
    handlers: Mapping[str, Handler]
    aliases: Mapping[str, str]
    rename: Callable[[str], str]
    make_projection: Callable[[], Projection]
    resumable: bool

    def translate(self, frame: str | bytes, state: SessionState, head: int) -> list[Step]:
        """The steps of one frame. Raises Problem, and then the frame changes nothing."""
        return self.translate_event(fields.parse_event(frame), state, head)

    def translate_event(self, payload: Mapping[str, Any], state: SessionState, head: int) -> list[Step]:
        """The same for a frame that was parsed already."""
        event_id = payload.get("event_id")
        name = payload["type"]
        handler = self.handlers.get(self.aliases.get(name, name))
        if handler is None:
            raise Problem("unknown_event", f"No event of that type is known: {name[:64]!r}.", "type", event_id)
        try:
            return handler(Request(payload, event_id, state, head, self.rules))
        except Problem as problem:
            problem.event_id = event_id
            raise

    def open_config(self, changes: Mapping[str, Any], base: SessionConfig) -> SessionConfig:
        """The configuration of a new session. Raises Problem."""
        return merge(base, changes, self.rules)

    def problem(self, problem: Problem) -> dict[str, Any]:
        """A problem as the ``error`` event of this dialect."""
        return problem_event(problem, self.rename)
