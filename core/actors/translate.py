"""What comes from the runtime, as commands for the machine, with the bodies that they name."""

from __future__ import annotations

from core.ports import runtime as rt
from core.ports.store import Body
from core.session import commands as c
from core.session import effects as fx
from core.session.digest import body_digest

STATUS = {"completed": "completed", "max_output_tokens": "incomplete"}


def command_from(message: rt.FromRuntime) -> tuple[c.Command, tuple[Body, ...]]:
    """The command that a runtime's message is."""
    match message:
        case rt.SpeechBegan():
            return c.SpeechHeard(message.segment, message.start_ms), ()
        case rt.SpeechGoesOn():
            return c.SpeechContinues(message.segment, message.speech_ms), ()
        case rt.SpeechEnded():
            return (
                c.SpeechFinished(message.segment, message.start_ms, message.end_ms, message.text, message.timings),
                (),
            )
        case rt.Heard():
            return c.TurnHeard(message.item_id, message.text), ()
        case rt.Produced():
            return _output(message)
        case rt.ToolCalled():
            call = c.ModelCall(message.epoch, message.response_id, message.call_id, message.name, message.arguments)
            return call, ()
        case rt.WantsToSpeak():
            return c.ModelSpeaks(message.epoch), ()
        case rt.LaneEnded():
            usage = (message.input_tokens, message.output_tokens)
            status = STATUS.get(message.reason, "completed")
            reason = "" if status == "completed" else message.reason
            return c.ModelDone(message.epoch, message.response_id, status, reason, usage), ()
        case rt.LaneFailed():
            return c.ModelDone(message.epoch, message.response_id, "failed", message.code), ()
        case rt.RuntimeLost():
            return c.LoseRuntime(message.reason), ()
        case rt.RuntimeReady():
            return gain(message.capabilities), ()


def gain(capabilities: rt.Capabilities) -> c.GainRuntime:
    """A worker is up, with what the machine must know of it."""
    return c.GainRuntime(capabilities.lane_tokens_max, capabilities.inputs, capabilities.can_truncate)


def _output(message: rt.Produced) -> tuple[c.Command, tuple[Body, ...]]:
    body = Body(body_digest(message.audio), message.audio) if message.audio else None
    command = c.ModelOutput(
        message.epoch,
        message.response_id,
        message.unit,
        message.kind,
        message.text,
        body.digest if body else "",
        len(message.audio),
        message.rate,
        len(message.audio) // 2,
        message.marks,
        message.timings,
    )
    return command, (body,) if body else ()


def part_of(effect: fx.FeedPart, data: bytes) -> rt.Part:
    """The effect with its bytes."""
    return rt.Part(
        effect.session,
        effect.epoch,
        effect.kind,
        effect.digest,
        effect.media_type,
        effect.start_ms,
        effect.item_id,
        effect.text,
        data,
    )
