"""Conversation items that the client makes, deletes and asks to see; configuration."""

from __future__ import annotations

from core.session import commands as c
from core.session import events as e
from core.session.config import (
    IMAGE,
    INPUT_ENCODINGS,
    NAMED_TOOL,
    OUTPUT_ENCODINGS,
    OVERLAP_POLICIES,
    TEXT,
    TOOL_CHOICES,
    TOOL_RESULT,
    UNACKED_POLICIES,
    WINDOW_MODES,
    SessionConfig,
    TurnDetection,
)
from core.session.decisions.context import Context, Decision
from core.session.decisions.input import image_append
from core.session.refusals import refuse
from core.session.state import IMAGES_A_TURN_MAX, IMAGES_BYTES_MAX, is_reserved_item_id, next_item_id

TOOLS_MAX = 128
TIME_MS_MAX = 30 * 86_400_000
TOKENS_MAX = 1_000_000
PENDING_COMMITS_MAX = 64
BYTES_MAX = 1 << 30


def create_item(ctx: Context, command: c.CreateItem) -> Decision:
    state = ctx.state
    item_id = command.item_id or next_item_id(state)
    if item_id in state.items or (command.item_id is not None and is_reserved_item_id(state, command.item_id)):
        return refuse("item_exists", command.event_id, "item.id")
    after = command.previous_item_id
    if after not in (None, "root") and after not in state.items:
        return refuse("previous_item_unknown", command.event_id, "previous_item_id")
    missing = next((kind for kind in _kinds(command) if kind not in state.inputs), None)
    if missing is not None:
        return refuse("input_unsupported", command.event_id, "item", f"It takes no {missing}.")
    images = command.images
    if len(images) > IMAGES_A_TURN_MAX or sum(image.size_bytes for image in images) > IMAGES_BYTES_MAX:
        return refuse("input_too_large", command.event_id, "item.content")
    shown = (image_append(state.input.now_ms, image, item_id) for image in images)
    return (
        e.ItemCreated(
            item_id, command.role, command.text, command.item, after, command.event_id, command.call_id, command.name
        ),
        *shown,
    )


def _kinds(command: c.CreateItem) -> list[str]:
    """The kinds of input that an item is. What an assistant said and asked for comes from a model and needs none."""
    kinds = [TOOL_RESULT] if command.role == "function_call_output" else []
    if command.role in ("user", "system") and command.text:
        kinds.append(TEXT)
    return [*kinds, IMAGE] if command.images else kinds


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
    checks = {**_format_checks(config), **_limit_checks(config)}
    if config.turn_detection is not None:
        checks.update(_detection_checks(config.turn_detection))
    return next((name for name, fine in checks.items() if not fine), None)


def _format_checks(config: SessionConfig) -> dict[str, bool]:
    return {
        "session.audio.input.format": config.input_format.encoding in INPUT_ENCODINGS,
        "session.audio.input.format.rate": 8_000 <= config.input_format.rate <= 192_000,
        "session.audio.output.format": config.output_format.encoding in OUTPUT_ENCODINGS,
        "session.audio.output.format.rate": 8_000 <= config.output_format.rate <= 192_000,
        "session.overlap_policy": config.overlap_policy in OVERLAP_POLICIES,
        "session.unacked": config.unacked in UNACKED_POLICIES,
        "session.sliding_window_mode": config.window_mode in WINDOW_MODES,
        "session.output_modalities": config.output_modalities in (("audio",), ("text",), ("text", "audio")),
        "session.tools": len(config.tools) <= TOOLS_MAX and all(tool.name for tool in config.tools),
        "session.tool_choice": config.tool_choice in TOOL_CHOICES or config.tool_choice.startswith(NAMED_TOOL),
        "session.context_on_barge_in": config.context_on_barge_in in ("heard", "empty"),
    }


def _limit_checks(config: SessionConfig) -> dict[str, bool]:
    """Numbers that cannot be would stop a session, or could not be read back from its log (NaN, infinity)."""
    temperature, tokens = config.temperature, config.max_output_tokens
    return {
        "session.max_output_tokens": tokens is None or 0 < tokens <= TOKENS_MAX,
        "session.basic_window_high_tokens": 0 < config.window_high_tokens <= TOKENS_MAX,
        "session.basic_window_low_tokens": 0 < config.window_low_tokens <= config.window_high_tokens,
        "session.context_previous_max_tokens": 0 <= config.window_previous_tokens <= config.window_low_tokens // 2,
        "session.temperature": temperature is None or 0 <= temperature <= 2,
        "session.idle_timeout_s": 0 < config.idle_timeout_ms <= TIME_MS_MAX,
        "session.pause_watchdog_ms": 0 < config.pause_watchdog_ms <= TIME_MS_MAX,
        "session.disconnect_grace_ms": 0 <= config.disconnect_grace_ms <= TIME_MS_MAX,
        "session.max_session_ms": config.max_session_ms is None or 0 < config.max_session_ms <= TIME_MS_MAX,
        "session.overlap_short_ack_ms": 0 <= config.overlap_short_ack_ms <= TIME_MS_MAX,
        "session.overlap_barge_in_ms": config.overlap_short_ack_ms <= config.overlap_barge_in_ms <= TIME_MS_MAX,
        "session.overlap_silence_rms": 0 <= config.overlap_silence_rms <= 1,
        "session.max_client_lead_ms": config.max_client_lead_ms is None or 0 < config.max_client_lead_ms <= TIME_MS_MAX,
        "session.max_lane_lead_ms": 0 < config.max_lane_lead_ms <= TIME_MS_MAX,
        "session.max_pending_commits": 0 < config.max_pending_commits <= PENDING_COMMITS_MAX,
        "session.max_pending_input_bytes": 0 < config.max_pending_input_bytes <= BYTES_MAX,
        "session.replay_window_ms": 0 <= config.replay_window_ms <= TIME_MS_MAX,
        "session.replay_window_bytes": 0 <= config.replay_window_bytes <= BYTES_MAX,
    }


def _detection_checks(detection: TurnDetection) -> dict[str, bool]:
    where = "session.audio.input.turn_detection"
    return {
        f"{where}.type": detection.type in ("server_vad", "semantic_vad"),
        f"{where}.threshold": 0 < detection.threshold <= 1,
        f"{where}.silence_duration_ms": 0 < detection.silence_duration_ms <= 10_000,
        f"{where}.prefix_padding_ms": 0 <= detection.prefix_padding_ms <= 2_000,
    }


def _input_pending(ctx: Context) -> bool:
    """With a detector and nobody speaking, what is kept is only pre-roll; without one, all of it is the user's."""
    side = ctx.state.input
    if ctx.state.config.turn_detection is None:
        return side.now_ms > side.taken_ms
    return side.speech is not None
