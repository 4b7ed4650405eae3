"""What may lie in a session's mailbox, beside the runtime's messages."""

from __future__ import annotations

import attrs

from core.actors.attachment import Attachment
from core.ports.runtime import FromRuntime
from core.ports.store import Body
from core.session.commands import Command


@attrs.frozen
class Posted:
    """A command, with the bodies that it names. ``size_bytes``: its weight, where a client sent it."""

    command: Command
    bodies: tuple[Body, ...] = ()
    size_bytes: int = 0


@attrs.frozen
class Left:
    """The peer of an attachment is gone."""

    attachment: Attachment
    reason: str


Entry = Posted | Left | Attachment | FromRuntime
