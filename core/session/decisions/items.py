"""Conversation items that the client makes, deletes and asks to see; configuration."""

from __future__ import annotations

from core.session import commands as c
from core.session import events as e
from core.session.config import INPUT_ENCODINGS, OUTPUT_ENCODINGS, OVERLAP_POLICIES, UNACKED_POLICIES, SessionConfig
from core.session.decisions.context import Context, Decision
from core.session.refusals import refuse
from core.session.state import next_item_id


def create_item(ctx: Context, command: c.CreateItem) -> Decision:
    state = ctx.state
    if command.event_id is not None and command.event_id in state.event_ids:
        return ()
    item_id = command.item_id or next_item_id(state)
    if item_id in state.items:
        return refuse("item_exists", command.event_id, "item.id")
    after = command.previous_item_id
    if after not in (None, "root") and after not in state.items:
        return refuse("previous_item_unknown", command.event_id, "previous_item_id")
    return (e.ItemCreated(item_id, command.role, command.text, command.item, after, command.event_id),)


def delete_item(ctx: Context, command: c.DeleteItem) -> Decision:
    if command.item_id not in ctx.state.items:
        return refuse("item_unknown", command.event_id, "item_id")
    return (e.ItemDeleted(command.item_id, command.event_id),)


def retrieve_item(ctx: Context, command: c.RetrieveItem) -> Decision:
    if command.item_id not in ctx.state.items:
        return refuse("item_unknown", command.event_id, "item_id")
    return (e.ItemRetrieved(command.item_id, command.event_id),)


def update_config(ctx: Context, command: c.UpdateConfig) -> Decision:
    """All of it or nothing."""
    old, new = ctx.state.config, command.config
    bad = invalid_param(new)
    if bad is not None:
        return refuse("invalid_config", command.event_id, bad)
    if new.model != old.model:
        return refuse("model_update_unsupported", command.event_id, "session.model")
    if new.voice != old.voice and ctx.state.spoken:
        return refuse("voice_update_after_audio", command.event_id, "session.audio.output.voice")
    if new.input_format != old.input_format and _input_pending(ctx):
        return refuse("input_format_update_pending", command.event_id, "session.audio.input.format")
    return (e.ConfigChanged(new, command.event_id),)


def invalid_param(config: SessionConfig) -> str | None:
    """The name of the first setting whose value cannot be, or None."""
    detection = config.turn_detection
    checks = {
        "session.audio.input.format": config.input_format.encoding in INPUT_ENCODINGS,
        "session.audio.input.format.rate": 8_000 <= config.input_format.rate <= 192_000,
        "session.audio.output.format": config.output_format.encoding in OUTPUT_ENCODINGS,
        "session.audio.output.format.rate": 8_000 <= config.output_format.rate <= 192_000,
        "session.overlap_policy": config.overlap_policy in OVERLAP_POLICIES,
        "session.unacked": config.unacked in UNACKED_POLICIES,
        "session.output_modalities": config.output_modalities in (("audio",), ("text",), ("text", "audio")),
        "session.max_output_tokens": config.max_output_tokens is None or config.max_output_tokens > 0,
        "session.idle_timeout_s": config.idle_timeout_ms > 0,
        "session.overlap_barge_in_ms": 0 <= config.overlap_short_ack_ms <= config.overlap_barge_in_ms,
        "session.context_on_barge_in": config.context_on_barge_in in ("heard", "empty"),
    }
    if detection is not None:
        checks["session.audio.input.turn_detection.type"] = detection.type in ("server_vad", "semantic_vad")
        checks["session.audio.input.turn_detection.threshold"] = 0 < detection.threshold <= 1
        checks["session.audio.input.turn_detection.silence_duration_ms"] = 0 < detection.silence_duration_ms <= 10_000
        checks["session.audio.input.turn_detection.prefix_padding_ms"] = 0 <= detection.prefix_padding_ms <= 2_000
    return next((name for name, fine in checks.items() if not fine), None)


def _input_pending(ctx: Context) -> bool:
    """With a detector and nobody speaking, what is kept is only pre-roll; without one, all of it is the user's."""
    side = ctx.state.input
    if ctx.state.config.turn_detection is None:
        return side.now_ms > side.taken_ms
    return side.speech is not None
