"""Conversation items that the client makes, deletes and asks to see; configuration."""

from __future__ import annotations

from collections.abc import Sequence

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


Check = tuple[bool, str]
"""(whether a setting's value may be, what it may be)."""


def invalid_param(config: SessionConfig) -> str | None:
    """The name of the first setting whose value cannot be, or None."""
    wrong = wrong_setting(config)
    return None if wrong is None else wrong[0]


def wrong_setting(config: SessionConfig) -> tuple[str, str] | None:
    """The first setting whose value cannot be, and in words what may be; None where all is well."""
    checks = {**_format_checks(config), **_limit_checks(config)}
    if config.turn_detection is not None:
        checks.update(_detection_checks(config.turn_detection))
    return next(((name, allowed) for name, (fine, allowed) in checks.items() if not fine), None)


def _within(value: float | None, least: float, most: float, *, more: bool = False, off: bool = False) -> Check:
    """From ``least`` to ``most``; ``more``: only what is more than ``least``; ``off``: None is fine, too."""
    fine = off if value is None else (least < value if more else least <= value) and value <= most
    return fine, f"{'more than ' if more else ''}{least:,} {'and at most' if more else 'to'} {most:,}{' or null' * off}"


def _one_of(value: object, names: Sequence[str]) -> Check:
    return value in names, f"one of {', '.join(names)}"


def _format_checks(config: SessionConfig) -> dict[str, Check]:
    modalities = config.output_modalities in (("audio",), ("text",), ("text", "audio"))
    tools = len(config.tools) <= TOOLS_MAX and all(tool.name for tool in config.tools)
    choice = config.tool_choice in TOOL_CHOICES or config.tool_choice.startswith(NAMED_TOOL)
    return {
        "session.audio.input.format": _one_of(config.input_format.encoding, INPUT_ENCODINGS),
        "session.audio.input.format.rate": _within(config.input_format.rate, 8_000, 192_000),
        "session.audio.output.format": _one_of(config.output_format.encoding, OUTPUT_ENCODINGS),
        "session.audio.output.format.rate": _within(config.output_format.rate, 8_000, 192_000),
        "session.overlap_policy": _one_of(config.overlap_policy, OVERLAP_POLICIES),
        "session.unacked": _one_of(config.unacked, UNACKED_POLICIES),
        "session.sliding_window_mode": _one_of(config.window_mode, WINDOW_MODES),
        "session.output_modalities": (modalities, "a list of audio, or text, or both"),
        "session.tools": (tools, f"at most {TOOLS_MAX} functions, each with a name"),
        "session.tool_choice": (choice, f"one of {', '.join(TOOL_CHOICES)}, or a function's name"),
        "session.context_on_barge_in": _one_of(config.context_on_barge_in, ("heard", "empty")),
    }


def _limit_checks(config: SessionConfig) -> dict[str, Check]:
    """Numbers that cannot be would stop a session, or could not be read back from its log (NaN, infinity)."""
    high, low, short_ms = config.window_high_tokens, config.window_low_tokens, config.overlap_short_ack_ms
    return {
        "session.max_output_tokens": _within(config.max_output_tokens, 1, TOKENS_MAX, off=True),
        "session.basic_window_high_tokens": _within(high, 1, TOKENS_MAX),
        "session.basic_window_low_tokens": _within(low, 1, high),
        "session.context_previous_max_tokens": _within(config.window_previous_tokens, 0, low // 2),
        "session.temperature": _within(config.temperature, 0, 2, off=True),
        "session.idle_timeout_s": (
            0 < config.idle_timeout_ms <= TIME_MS_MAX,
            f"more than 0 and at most {TIME_MS_MAX // 1_000:,}",
        ),
        "session.pause_watchdog_ms": _within(config.pause_watchdog_ms, 1, TIME_MS_MAX),
        "session.disconnect_grace_ms": _within(config.disconnect_grace_ms, 0, TIME_MS_MAX),
        "session.max_session_ms": _within(config.max_session_ms, 1, TIME_MS_MAX, off=True),
        "session.overlap_short_ack_ms": _within(short_ms, 0, TIME_MS_MAX),
        "session.overlap_barge_in_ms": _within(config.overlap_barge_in_ms, short_ms, TIME_MS_MAX),
        "session.overlap_silence_rms": _within(config.overlap_silence_rms, 0, 1),
        "session.max_client_lead_ms": _within(config.max_client_lead_ms, 1, TIME_MS_MAX, off=True),
        "session.max_lane_lead_ms": _within(config.max_lane_lead_ms, 1, TIME_MS_MAX),
        "session.max_pending_commits": _within(config.max_pending_commits, 1, PENDING_COMMITS_MAX),
        "session.max_pending_input_bytes": _within(config.max_pending_input_bytes, 1, BYTES_MAX),
        "session.replay_window_ms": _within(config.replay_window_ms, 0, TIME_MS_MAX),
        "session.replay_window_bytes": _within(config.replay_window_bytes, 0, BYTES_MAX),
    }


def _detection_checks(detection: TurnDetection) -> dict[str, Check]:
    where = "session.audio.input.turn_detection"
    return {
        f"{where}.type": _one_of(detection.type, ("server_vad", "semantic_vad")),
        f"{where}.threshold": _within(detection.threshold, 0, 1, more=True),
        f"{where}.silence_duration_ms": _within(detection.silence_duration_ms, 1, 10_000),
        f"{where}.prefix_padding_ms": _within(detection.prefix_padding_ms, 0, 2_000),
    }


def _input_pending(ctx: Context) -> bool:
    """With a detector and nobody speaking, what is kept is only pre-roll; without one, all of it is the user's."""
    side = ctx.state.input
    if ctx.state.config.turn_detection is None:
        return side.now_ms > side.taken_ms
    return side.speech is not None
