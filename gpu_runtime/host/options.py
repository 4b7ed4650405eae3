"""How a host treats its worker."""

from __future__ import annotations

import attrs


@attrs.frozen
class WorkerOptions:
    """Times in seconds; all have defaults that suit a server."""

    load_timeout_s: float = 600.0
    """A model that is not ready by then counts as dead."""
    ping_interval_s: float = 1.0
    stall_timeout_s: float = 15.0
    """A worker whose message thread left pings unanswered for so long is killed and counts as lost, unless the host itself
    has much to read of it still."""
    deaf_timeout_s: float = 60.0
    """Then it is after so long: a worker that cannot get rid of its output takes messages slowly, but it takes them."""
    shutdown_timeout_s: float = 5.0
    """How long a worker may take to let go at the end, before it is killed."""
    restart_delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
    """Before the first restart, the second ...; the last one is for all that follow."""
    healthy_after_s: float = 60.0
    """A worker that was ready for so long starts the delays from the beginning when it dies."""
    spread_s: float = 5.0
    """When all workers died: how long the first one that is up again leaves the others' part of the sessions to them."""
    queue_items_max: int = 32_768
    queue_bytes_max: int = 32 * 1024 * 1024
    session_items_max: int = 1_024
    session_bytes_max: int = 12 * 1024 * 1024
    """One session's share of the queue, so that a flood refuses its own sender and nobody else; more than a client may say
    in one message. It has never more than the room that is left for all others: many floods together leave room too."""
    reserve_items: int = 1_024
    reserve_bytes: int = 1024 * 1024
    """On top of all four: room that audio may not use, so that a flooded session can still be aborted and closed."""
