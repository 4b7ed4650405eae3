"""What a server may be told."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping

import attrs

from adapters.server.admission import Limits
from adapters.wire.dialects import DIALECTS
from adapters.wire.served import OPENAI_MODELS
from core.session.config import SessionConfig


@attrs.frozen
class ServerSettings:
    """Limits and access. Times in seconds; ``defaults`` holds what a session of each dialect begins with."""

    host: str = "127.0.0.1"
    port: int = 8765
    model: str = "cascade"
    model_aliases: tuple[str, ...] = OPENAI_MODELS
    """Other names, as patterns, under which clients may ask for it."""
    sessions_max: int | None = None
    """None: as many as the workers have room for."""
    connections_max: int = 1_024
    """Open TCP connections, whatever they do; one more is turned away."""
    drain_s: float = 30.0
    """How long answers may still play out after SIGTERM."""
    head_timeout_s: float = 10.0
    """For a request's whole head and body, however slowly it drips in."""
    keep_alive_s: float = 30.0
    first_frame_s: float = 10.0
    """For a duplex client's first message."""
    send_timeout_s: float = 20.0
    """For one message: a peer that takes nothing for so long is gone."""
    silent_s: float = 120.0
    """For a model that owes an answer: after so long without a word the answer fails, as model_silent."""
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    """With any, /v1/ needs one of them."""
    limits: Limits = attrs.field(factory=Limits)
    """Of the waiting line, and of each key."""
    origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may connect."""
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    """Speak TLS with this certificate; browsers give a microphone only to pages from localhost or over TLS."""
    defaults: Mapping[str, SessionConfig] = attrs.field(factory=dict)

    def defaults_of(self, dialect: str) -> SessionConfig:
        """The configuration of a session whose client asks for nothing."""
        config = self.defaults.get(dialect, DIALECTS[dialect].defaults)
        return attrs.evolve(config, model=self.model)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
