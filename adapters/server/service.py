"""What a server serves with, once it is all there."""

from __future__ import annotations

import attrs
import trio

from adapters.server.admission import Admission
from adapters.server.metrics import Metrics
from adapters.server.patience import Patience
from adapters.server.settings import ServerSettings
from adapters.server.turnstile import Turnstile
from core.actors.supervisor import Supervisor
from core.ports.runtime import Runtime

BIG_BODIES_AT_ONCE = 2


@attrs.frozen
class Service:
    """The parts that a conversation needs."""

    supervisor: Supervisor
    runtime: Runtime
    metrics: Metrics
    settings: ServerSettings
    patience: Patience
    """Whose looks somebody sees to."""
    admission: Admission = attrs.field(
        default=attrs.Factory(lambda self: Admission(self.supervisor, self.settings.limits), takes_self=True)
    )
    turnstile: Turnstile = attrs.field(
        default=attrs.Factory(lambda self: Turnstile(lambda: self.metrics.last_lag_s), takes_self=True)
    )

    big_bodies: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(BIG_BODIES_AT_ONCE))
    """For the messages that are large enough to fill the store's queue, if many come at once."""

    def __attrs_post_init__(self) -> None:
        self.metrics.watch_admission(self.admission)

    @property
    def voices(self) -> tuple[str, ...]:
        """The model's voices, as far as they are known."""
        capabilities = self.runtime.capabilities
        return () if capabilities is None else capabilities.voices
