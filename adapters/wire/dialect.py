"""What a server must know of a dialect: how its frames become commands, how its log becomes frames, what it says apart.

Translation is pure: (text, what is seen of the session) -> steps. A big frame is translated in a thread while the session
goes on. A step is a command for the session or an answer of the transport (unnumbered, not in the log). A frame without
steps was understood and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from adapters.wire import fields
from adapters.wire.encoding import Encoder, JsonEncoder
from adapters.wire.problems import Problem, error_body, problem_event
from adapters.wire.schema import names
from adapters.wire.seen import Seen
from adapters.wire.served import Served
from adapters.wire.updates import Rules, merge
from core.ports.projection import Projection
from core.ports.store import Body
from core.session import commands as c
from core.session.config import SessionConfig
from core.session.state import SessionState

NO_GRACE_MS = 0
"""``disconnect_grace_ms`` of a dialect that cannot resume: its session ends with its connection."""


@attrs.frozen
class Ask:
    """A command for the session, with the bytes that it names."""

    command: c.Command
    bodies: tuple[Body, ...] = ()


@attrs.frozen
class Answer:
    """An event that the transport itself answers with."""

    payload: Mapping[str, Any]


Step = Ask | Answer


@attrs.frozen
class Request:
    """One client event in its session."""

    payload: Mapping[str, Any]
    event_id: str | None
    state: Seen
    rules: Rules


Handler = Callable[[Request], list[Step]]

Reader = Callable[[str | bytes], Mapping[str, Any] | None]
"""One message -> an event with a ``type``, None for what means nothing. Raises Problem. It may hold a codec's state, so each
connection has its own."""


@attrs.frozen
class Waiting:
    """A client's place among those that wait for a session. ``first``: it has just come to wait."""

    ticket: str
    position: int
    queue_length: int
    wait_s: float
    first: bool


def _json_reader() -> Reader:
    return fields.parse_event


def _say_nothing(waiting: Waiting) -> Mapping[str, Any] | None:
    return None


def _ask_nothing(changes: Mapping[str, Any]) -> list[Ask]:
    return []


def _open_plainly(query: Mapping[str, str], voices: tuple[str, ...]) -> Mapping[str, Any]:
    return {}


@attrs.frozen
class Dialect:
    """One wire dialect. ``defaults`` is the configuration of a session whose client asks for nothing."""

    name: str
    defaults: SessionConfig
    rules: Rules
    handlers: Mapping[str, Handler]
    aliases: Mapping[str, str]
    rename: Callable[[str], str]
    make_projection: Callable[[], Projection]
    resumable: bool
    make_encoder: Callable[[], Encoder] = JsonEncoder
    make_reader: Callable[[], Reader] = _json_reader
    queue_event: Callable[[Waiting], Mapping[str, Any] | None] = _say_nothing
    """What a client that waits is told."""
    opening: Callable[[Mapping[str, str], tuple[str, ...]], Mapping[str, Any]] = _open_plainly
    """(the URL's query, the model's voices) -> settings of the session that it opens. Raises Problem; the upgrade is refused
    then."""
    reference_voice: Callable[[Mapping[str, Any]], list[Ask]] = _ask_nothing
    """Settings of a session that is opened -> the voice to speak with, for a model that takes one. Raises Problem."""
    plain_error: Callable[[str, str], Mapping[str, Any]] | None = None
    """(code, message) -> an error in a dialect without error objects."""
    clocked: bool = False
    """Each piece of its clients' sound is answered with one of its own."""
    unknown_event: str = "No event of that type is known: '{}'."

    def translate(self, frame: str | bytes, state: SessionState, head: int) -> list[Step]:
        """The steps of one frame. Raises Problem, and then the frame changes nothing."""
        return self.translate_event(fields.parse_event(frame), Seen.of(state, head))

    def translate_event(self, payload: Mapping[str, Any], state: Seen) -> list[Step]:
        """The same for a frame that was parsed already."""
        event_id = payload.get("event_id")
        name = payload["type"]
        handler = self.handlers.get(self.aliases.get(name, name))
        if handler is None:
            raise Problem("unknown_event", self.unknown_event.format(name[:64]), "type", event_id)
        try:
            return handler(Request(payload, event_id, state, self.rules))
        except Problem as problem:
            problem.event_id = event_id
            raise

    def serving(self, served: Served) -> Dialect:
        """The same, of a server that checks the names which its clients ask for."""
        return attrs.evolve(self, rules=attrs.evolve(self.rules, served=served))

    def open_config(self, changes: Mapping[str, Any], base: SessionConfig) -> SessionConfig:
        """The configuration of a new session. Raises Problem."""
        return merge(base, changes, self.rules)

    def problem(self, problem: Problem) -> dict[str, Any]:
        """A problem as the ``error`` event of this dialect."""
        if self.plain_error is not None:
            return dict(self.plain_error(problem.code, problem.message))
        return problem_event(problem, self.rename)

    def refusal(
        self, code: str, message: str, param: str | None = None, retry_after_ms: int | None = None
    ) -> dict[str, Any]:
        """Why there is no session for this client. ``retry_after_ms``: it may come back then."""
        if self.plain_error is not None:
            return dict(self.plain_error(code, message))
        retryable = None if retry_after_ms is None else True
        body = error_body(self.rename(code), message, param, retryable=retryable)
        if retry_after_ms is not None:
            body["retry_after_ms"] = retry_after_ms
        return {"type": names.ERROR, "error": body}
