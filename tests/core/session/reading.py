"""What tests of the machine read off a step and a world."""

from __future__ import annotations

import attrs

from core.session import events as e
from core.session.machine import Step
from tests.core.session.world import CLIENT_VAD, World

NOTHING_ASSUMED = attrs.evolve(CLIENT_VAD, unacked="heard_nothing")
"""Of audio that is not acked, nothing was heard."""


def kinds(result: Step) -> list[str]:
    """The tags of the events that the step decided, in order."""
    return [e.TAGS[type(record.event)] for record in result.records]


def code(result: Step) -> str | None:
    """Why it was refused, None where it was not."""
    return result.refusal.code if result.refusal else None


def said(world: World) -> list[str | None]:
    """What the assistant has said, as the history knows it."""
    return [text for role, text in world.history() if role == "assistant"]
