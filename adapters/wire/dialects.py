"""The dialects that this server speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.wire.dialect import Dialect, Waiting
from adapters.wire.duplex import errors as duplex_errors
from adapters.wire.duplex import translation as duplex
from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.minicpmo import translation as minicpmo
from adapters.wire.minicpmo.encoding import MiniCPMOEncoder
from adapters.wire.minicpmo.projection import MiniCPMOProjection
from adapters.wire.moshi import translation as moshi
from adapters.wire.moshi.encoding import MoshiEncoder, MoshiReader
from adapters.wire.moshi.projection import MoshiProjection
from adapters.wire.openai import errors as openai_errors
from adapters.wire.openai import translation as openai
from adapters.wire.openai.projection import OpenAIProjection
from adapters.wire.schema import names


def _same(code: str) -> str:
    return code


def _queued(waiting: Waiting) -> Mapping[str, Any]:
    """Unnumbered, before ``session.created``: its clients pass over events that they do not know."""
    return {
        "type": names.SESSION_QUEUED if waiting.first else names.SESSION_QUEUE_UPDATE,
        "position": waiting.position,
        "estimated_wait_s": waiting.wait_s,
        "queue_length": waiting.queue_length,
    }


OPENAI = Dialect(
    name=OpenAIProjection.dialect,
    defaults=openai.DEFAULTS,
    rules=openai.RULES,
    handlers=openai.HANDLERS,
    aliases={},
    rename=openai_errors.rename,
    make_projection=OpenAIProjection,
    resumable=False,
)
"""Whoever waits hears nothing: the first event of this dialect is session.created."""

DUPLEX = Dialect(
    name=DuplexProjection.dialect,
    defaults=duplex.DEFAULTS,
    rules=duplex.RULES,
    handlers=duplex.HANDLERS,
    aliases=names.CLIENT_ALIASES,
    rename=duplex_errors.rename,
    make_projection=DuplexProjection,
    resumable=True,
    reference_voice=duplex.reference_voice,
    queue_event=_queued,
)

MINICPMO = Dialect(
    name=MiniCPMOProjection.dialect,
    defaults=minicpmo.DEFAULTS,
    rules=minicpmo.RULES,
    handlers=minicpmo.HANDLERS,
    aliases={},
    rename=_same,
    make_projection=MiniCPMOProjection,
    resumable=False,
    clocked=True,
    make_encoder=MiniCPMOEncoder,
    queue_event=minicpmo.queue_event,
    unknown_event="Unknown message type: {}",
    plain_error=minicpmo.plain_error,
)

MOSHI = Dialect(
    name=MoshiProjection.dialect,
    defaults=moshi.DEFAULTS,
    rules=moshi.RULES,
    handlers=moshi.HANDLERS,
    aliases={},
    rename=_same,
    make_projection=MoshiProjection,
    resumable=False,
    clocked=True,
    make_encoder=MoshiEncoder,
    make_reader=MoshiReader,
    opening=moshi.opening,
    plain_error=moshi.plain_error,
)
"""Whoever waits hears nothing, as with Moshi's own server."""

DIALECTS = {dialect.name: dialect for dialect in (OPENAI, DUPLEX, MINICPMO, MOSHI)}
