"""What a server serves with, once it is all there."""

from __future__ import annotations

import attrs

from adapters.server.metrics import Metrics
from adapters.server.settings import ServerSettings
from core.actors.supervisor import Supervisor
from core.ports.runtime import Runtime


@attrs.frozen
class Service:
    """The parts that a conversation needs."""

    supervisor: Supervisor
    runtime: Runtime
    metrics: Metrics
    settings: ServerSettings
