"""What a client needs to come back: credentials of a session, and the policy by which it tries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class ResumeCredentials:
    """Everything that another client, in another process, needs to go on with a session's stream.

    ``last_number`` is the last number that was *used* (shown, played, stored) by whoever exports it. The token is a
    secret: it is left out of ``repr``, and whoever presents it takes the session over.
    """

    session_id: str
    resume_token: str = field(repr=False)
    last_number: int = 0
    generation: int = 0

    def to_json(self) -> str:
        """A line that ``from_json`` reads back; keep it like a password."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ResumeCredentials:
        """Raises ValueError, naming the field that is wrong."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"resume credentials are not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ValueError("resume credentials must be a JSON object")
        for name, kind in (("session_id", str), ("resume_token", str), ("last_number", int), ("generation", int)):
            if type(raw.get(name)) is not kind:
                raise ValueError(f"resume credentials: {name} must be {kind.__name__}")
        return cls(raw["session_id"], raw["resume_token"], raw["last_number"], raw["generation"])


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How a dropped connection is resumed: tries that lie exponentially further apart, until one of the limits."""

    attempts_max: int | None = None
    """Tries in a row; None: as many as ``outage_ms_max`` has room for."""
    outage_ms_max: int = 120_000
    """How long after the loss a try may begin. A killed server needs its time to load the model again, and keeps its
    sessions for 30 s from then on, not from the loss."""
    initial_ms: int = 100
    factor: float = 2.0
    delay_ms_max: int = 5_000
    jitter: float = 0.25
    """The part of each delay that is left to chance, 0 to 1, so that clients of a restarted server do not all return
    at once."""

    def __post_init__(self) -> None:
        limits = (self.attempts_max or 0, self.outage_ms_max, self.initial_ms)
        if min(limits) < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise ValueError("ReconnectPolicy: limits and delays must not be negative, factor >= 1, jitter in [0, 1]")

    def delay_ms(self, attempt: int, chance: float, *, lost_ms: int = 0, retry_after_ms: int = 0) -> int | None:
        """The wait before attempt ``attempt`` (from 1); ``chance`` in [0, 1) is drawn by the caller. ``lost_ms``: since the
        connection was lost; ``retry_after_ms``: the server asked for so long a pause. None: give up."""
        if self.attempts_max is not None and attempt > self.attempts_max:
            return None
        exponent = min(attempt - 1, 62)
        whole = min(float(self.delay_ms_max), self.initial_ms * self.factor**exponent)
        delay_ms = max(retry_after_ms, int(whole * (1 - self.jitter + self.jitter * chance)))
        return delay_ms if lost_ms + delay_ms <= self.outage_ms_max else None
