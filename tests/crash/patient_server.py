"""``duologue serve`` whose sessions wait five minutes for their clients: a machine that runs many tests at once may need half
a minute to start a server again."""

from __future__ import annotations

import attrs

from adapters.command_line.main import main
from adapters.wire.dialects import DIALECTS

for name, dialect in tuple(DIALECTS.items()):
    patient = attrs.evolve(dialect.defaults, disconnect_grace_ms=300_000)
    DIALECTS[name] = attrs.evolve(dialect, defaults=patient)

if __name__ == "__main__":
    main()
