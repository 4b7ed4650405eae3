"""How a worker tells its host of a fault of ours: on standard error, with a mark, and without the exception's text.

The host puts marked lines into its log at once. Everything else that a worker prints it keeps for the debug level, since a
library may print what was said.
"""

from __future__ import annotations

import sys

from core.ports.described import described

MARK = "fault of ours: "


def tell_fault(error: BaseException) -> None:
    """Its kind and its frames, a line for each exception of the chain."""
    for line in described(error).splitlines():
        sys.stderr.write(f"{MARK}{line}\n")
    sys.stderr.flush()
