"""The dialects that this server speaks."""

from __future__ import annotations

from adapters.wire.dialect import Dialect
from adapters.wire.duplex import errors as duplex_errors
from adapters.wire.duplex import translation as duplex
from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.openai import errors as openai_errors
from adapters.wire.openai import translation as openai
from adapters.wire.openai.projection import OpenAIProjection
from adapters.wire.schema import names

OPENAI = Dialect(
    name=OpenAIProjection.dialect,
    version=OpenAIProjection.version,
    defaults=openai.DEFAULTS,
    rules=openai.RULES,
    handlers=openai.HANDLERS,
    aliases={},
    rename=openai_errors.rename,
    make_projection=OpenAIProjection,
    resumable=False,
)

DUPLEX = Dialect(
    name=DuplexProjection.dialect,
    version=DuplexProjection.version,
    defaults=duplex.DEFAULTS,
    rules=duplex.RULES,
    handlers=duplex.HANDLERS,
    aliases=names.CLIENT_ALIASES,
    rename=duplex_errors.rename,
    make_projection=DuplexProjection,
    resumable=True,
)

DIALECTS = {dialect.name: dialect for dialect in (OPENAI, DUPLEX)}
