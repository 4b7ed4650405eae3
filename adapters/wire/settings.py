"""What every dialect's session object has in common: formats, detection, and what is echoed and not read.

``SessionConfig.echo`` is JSON of two objects: ``client`` holds the client's own settings as it wrote them and gets them back
(tracing, say, which nobody reads, or tools, which the machine has in a form of its own), ``runtime`` what the client should
know of the model (its unit, how much to buffer).
Both are in the log, so a replay shows the session object that was shown, whatever model is there by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire.schema.audio import MIME_NAMES, PCM16
from core.ports.runtime import Capabilities
from core.session.config import IMAGE, AudioFormat, SessionConfig, TurnDetection

TELEPHONE_RATE = 8_000
EAGERNESS_SILENCE_MS = {"low": 1_500, "medium": 800, "auto": 800, "high": 320}
"""How long a pause ends a turn, by OpenAI's ``eagerness``."""


def read_echo(config: SessionConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the client's own settings, what there is to know of the model)."""
    echo = json.loads(config.echo)
    return echo.get("client", {}), echo.get("runtime", {})


def write_echo(client: Mapping[str, Any], runtime: Mapping[str, Any]) -> str:
    """The text for ``SessionConfig.echo``."""
    return json.dumps({"client": client, "runtime": runtime}, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def with_capabilities(config: SessionConfig, capabilities: Capabilities | None) -> SessionConfig:
    """A fresh session's configuration, which tells its client what the model needs of a player."""
    if capabilities is None:
        return config
    client, runtime = read_echo(config)
    runtime["unit_ms"] = capabilities.unit_ms
    runtime["recommended_prebuffer_ms"] = capabilities.prebuffer_ms
    runtime["supports_image_input"] = IMAGE in capabilities.inputs
    runtime["supports_tool_calls"] = capabilities.tool_calls
    return attrs.evolve(config, echo=write_echo(client, runtime))


def format_object(audio: AudioFormat) -> dict[str, Any]:
    """GA's ``format`` object. Telephone encodings name no rate at their usual one."""
    shape: dict[str, Any] = {"type": MIME_NAMES[audio.encoding]}
    if audio.encoding == PCM16 or audio.encoding == "pcm_f32le" or audio.rate != TELEPHONE_RATE:
        shape["rate"] = audio.rate
    return shape


def detection_object(detection: TurnDetection | None, client: Mapping[str, Any]) -> dict[str, Any] | None:
    """GA's ``turn_detection``, complete."""
    if detection is None:
        return None
    common = {
        "type": detection.type,
        "create_response": detection.create_response,
        "interrupt_response": detection.interrupt_response,
    }
    if detection.type == "semantic_vad":
        return {**common, "eagerness": client.get("eagerness", "auto")}
    return {
        **common,
        "threshold": detection.threshold,
        "prefix_padding_ms": detection.prefix_padding_ms,
        "silence_duration_ms": detection.silence_duration_ms,
        "idle_timeout_ms": None,
    }
