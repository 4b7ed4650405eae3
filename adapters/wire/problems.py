"""What is wrong with a client's frame, as a value: the one place where refusals of the transport get their shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.wire.schema import names
from adapters.wire.schema.errors import error_type

OWN_EVENT_PREFIX = "server."
"""Begins the event ids that a server gives to commands of clients that name none; they are never shown."""


class Problem(Exception):
    """A frame that never becomes a command. ``param`` names the field at fault, ``event_id`` the client's event.

    The connection lives on; nothing of the frame was applied.
    """

    def __init__(self, code: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id

    def let_go(self) -> None:
        """Forget where it was raised, once it is told: those frames hold the client's frame, which may have many MiB, until
        somebody looks for garbage."""
        self.__traceback__ = self.__context__ = None


def error_body(
    code: str, message: str, param: str | None = None, event_id: str | None = None, *, retryable: bool | None = None
) -> dict[str, Any]:
    """The nested object of an ``error`` event, the same in every dialect here."""
    body: dict[str, Any] = {
        "type": error_type(code),
        "code": code,
        "message": message,
        "param": param,
        "event_id": None if event_id is not None and event_id.startswith(OWN_EVENT_PREFIX) else event_id,
    }
    if retryable is not None:
        body["retryable"] = retryable
    return body


def problem_event(problem: Problem, rename: Callable[[str], str]) -> dict[str, Any]:
    """A problem as the dialect's ``error`` event."""
    body = error_body(rename(problem.code), problem.message, problem.param, problem.event_id)
    return {"type": names.ERROR, "error": body}
