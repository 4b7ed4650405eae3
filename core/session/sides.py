"""The two small machines that run side by side in a session, as tables: the user's side and the assistant's side.

Neither is stored: each is a reading of the state. The tables say which events may move them; the property tests hold every
step to them, and the diagrams in docs/ are drawn from them. An event that is not named for a state leaves it as it is.
"""

from __future__ import annotations

from enum import Enum

from core.session import events as e
from core.session.state import SessionState


class UserSide(Enum):
    """What the user is doing, as far as the session knows."""

    SILENT = "silent"
    SPEAKING = "speaking"
    WAITING = "waiting"
    """A turn was committed and its answer has not begun."""


class AssistantSide(Enum):
    """What the assistant is doing."""

    AWAY = "away"
    """No lane: the runtime is gone, or the epoch has just begun."""
    IDLE = "idle"
    ANSWERING = "answering"


def user_side(state: SessionState) -> UserSide:
    """The user's side now."""
    if state.input.speech is not None:
        return UserSide.SPEAKING
    return UserSide.WAITING if state.queued else UserSide.SILENT


def assistant_side(state: SessionState) -> AssistantSide:
    """The assistant's side now."""
    if state.active is not None:
        return AssistantSide.ANSWERING
    return AssistantSide.IDLE if state.runtime_up and state.lane_epoch == state.epoch else AssistantSide.AWAY


_SILENT_OR_WAITING = (UserSide.SILENT, UserSide.WAITING)

USER_MOVES: dict[tuple[UserSide, type], tuple[UserSide, ...]] = {
    (UserSide.SILENT, e.SpeechStarted): (UserSide.SPEAKING,),
    (UserSide.SILENT, e.Commit): (UserSide.WAITING,),
    (UserSide.SILENT, e.ResponseEnded): (UserSide.WAITING,),
    (UserSide.SPEAKING, e.SpeechStopped): _SILENT_OR_WAITING,
    (UserSide.SPEAKING, e.InputCleared): _SILENT_OR_WAITING,
    (UserSide.SPEAKING, e.Commit): _SILENT_OR_WAITING,
    (UserSide.SPEAKING, e.ConfigChanged): _SILENT_OR_WAITING,
    (UserSide.SPEAKING, e.RuntimeChanged): _SILENT_OR_WAITING,
    (UserSide.WAITING, e.SpeechStarted): (UserSide.SPEAKING,),
    (UserSide.WAITING, e.ResponseStarted): (UserSide.SILENT,),
    (UserSide.WAITING, e.ItemDeleted): (UserSide.SILENT,),
    (UserSide.WAITING, e.EpochBump): (UserSide.SILENT,),
    (UserSide.WAITING, e.SessionClosed): (UserSide.SILENT,),
}
"""(where from, by which event) -> where to, beside staying."""

_AWAY_OR_IDLE = (AssistantSide.AWAY, AssistantSide.IDLE)

ASSISTANT_MOVES: dict[tuple[AssistantSide, type], tuple[AssistantSide, ...]] = {
    (AssistantSide.AWAY, e.LaneOpened): (AssistantSide.IDLE,),
    (AssistantSide.IDLE, e.ResponseStarted): (AssistantSide.ANSWERING,),
    (AssistantSide.IDLE, e.EpochBump): (AssistantSide.AWAY,),
    (AssistantSide.IDLE, e.RuntimeChanged): (AssistantSide.AWAY,),
    (AssistantSide.IDLE, e.OwnerChanged): (AssistantSide.AWAY,),
    (AssistantSide.ANSWERING, e.ResponseEnded): _AWAY_OR_IDLE,
}
"""The same for the assistant's side. An answer is always ended by its own event, whatever ends the lane."""
