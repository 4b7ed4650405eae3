"""What steers a client, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.client.credentials import ReconnectPolicy
from adapters.client.outbox import OutboxStatistics


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What steers a client. ``*_ms`` None switches that timer off."""

    config: Mapping[str, Any] = field(default_factory=dict)
    reconnect: ReconnectPolicy | None = field(default_factory=ReconnectPolicy)
    heartbeat_ms: int | None = 30_000
    handshake_ms: int = 30_000
    ack_ms: int = 250
    strict_stream: bool = True
    """An unannounced gap ends the client with StreamGap; else it is only counted."""


@dataclass(frozen=True, slots=True)
class CoreStatistics:
    """Counts since the client began."""

    received_events: int
    received_bytes: int
    duplicate_events: int
    skipped_events: int
    lost_events: int
    stale_audio_deltas: int
    reconnects: int
    outbox: OutboxStatistics
