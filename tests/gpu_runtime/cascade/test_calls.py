"""Function calls through the cascade: offered to a language model that calls, told after the answer's last unit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core.ports.runtime import (
    ConfigureSession,
    HistoryTurn,
    LaneEnded,
    OpenLane,
    Produced,
    Respond,
    Tool,
    ToolCalled,
)
from core.session.config import AudioFormat
from gpu_runtime.models.cascade.model import Cascade, Parts
from gpu_runtime.models.cascade.parts import Cancel, ChatCall, ChatMessage, OnCall, OnText, Tooling, Usage
from gpu_runtime.models.cascade.settings import Settings
from tests.gpu_runtime.cascade.fakes import LoudnessDetector, ScriptedModel, SteadyVoice, Studio

LOOK_UP = (Tool("look_up"),)


class CallingScript(ScriptedModel):
    """Asks for the first function that it is offered, once it has said its answer."""

    def __init__(self, default: str = "One moment.") -> None:
        super().__init__(default)
        self.offered: list[Tooling] = []

    def generate_calling(
        self,
        messages: Sequence[ChatMessage],
        max_tokens: int,
        on_text: OnText,
        cancel: Cancel,
        tooling: Tooling,
        on_call: OnCall,
    ) -> Usage:
        usage = self.generate(messages, max_tokens, on_text, cancel) if self.default else Usage(1, 1)
        self.offered.append(tooling)
        on_call(ChatCall("c1", tooling.tools[0].name, "{}"))
        return usage


class CallingStudio(Studio):
    def __init__(self, default: str = "One moment.") -> None:
        super().__init__()
        self.cascade.close()
        self.caller = CallingScript(default)
        parts = Parts(LoudnessDetector, self.recogniser, self.caller, SteadyVoice())
        self.cascade = Cascade(parts, Settings.parse({}), self.heard)

    def tools(self, tools: tuple[Tool, ...], choice: str = "auto") -> None:
        self.cascade.handle(ConfigureSession("s", AudioFormat("pcm16", 16_000), None, tools, choice))

    def ask(self, response_id: str = "r1", tools: tuple[Tool, ...] | None = None, choice: str | None = None) -> None:
        turns = (HistoryTurn("user", "what is it", "i1"),)
        self.cascade.handle(Respond("s", 1, response_id, "", turns, ("audio",), None, tools, choice))
        self.heard.wait_for(LaneEnded, len(self.heard.of(LaneEnded)) + 1)


def test_a_cascade_says_what_it_takes() -> None:
    with Studio() as studio, CallingStudio() as calling:
        assert studio.cascade.capabilities.inputs == ("audio", "text", "tool_result")
        assert not studio.cascade.capabilities.tool_calls
        assert calling.cascade.capabilities.tool_calls


@pytest.mark.parametrize("default", ["One moment.", ""])
def test_a_call_comes_after_what_is_said_and_before_the_end(default: str) -> None:
    with CallingStudio(default) as studio:
        studio.open(detection=None)
        studio.tools(LOOK_UP, "required")
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        studio.ask()
        kinds = [type(message) for message in studio.heard.said]
        assert kinds[-2:] == [ToolCalled, LaneEnded]
        assert (Produced in kinds) == bool(default)
        assert studio.heard.of(ToolCalled) == [ToolCalled("s", 1, "r1", "c1", "look_up", "{}")]
        assert studio.caller.offered == [Tooling(LOOK_UP, "required")]


def test_without_functions_or_with_none_to_be_chosen_nothing_is_called() -> None:
    with CallingStudio() as studio:
        studio.open(detection=None)
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        studio.ask("r1")
        studio.tools(LOOK_UP, "none")
        studio.ask("r2")
        studio.ask("r3", choice="auto")
        studio.ask("r4", tools=())
        assert [called.response_id for called in studio.heard.of(ToolCalled)] == ["r3"]


def test_a_model_that_calls_nothing_is_offered_nothing() -> None:
    with Studio() as studio:
        studio.open(detection=None)
        studio.cascade.handle(OpenLane("s", 1, "", "", ()))
        turns = (HistoryTurn("user", "what is it", "i1"),)
        studio.cascade.handle(Respond("s", 1, "r1", "", turns, ("audio",), None, LOOK_UP, "required"))
        studio.heard.wait_for(LaneEnded)
        assert not studio.heard.of(ToolCalled)
