"""What the versions of the stream differ in, for OpenAI's dialect and for the duplex one, which extends it.

A log names the version by which its stream was made, and is folded by that one for ever: what a version says may not
change once a release has written such logs.
"""

from __future__ import annotations

import attrs

from core.ports.projection import DELTA, TERMINAL


@attrs.frozen
class Version:
    """One version of the stream."""

    number: int
    call_kind: str
    """What the events of a function call are. As deltas (1) they were skipped at a resume behind a cut, though the call
    was made; as an end (2) those that were handed over before the cut stand, and come again."""

    tells_duration: bool
    """Whether a transcript comes with the length of the turn's audio; it was 0 s (1)."""

    clears_untouched: bool
    """Whether an answer before the newest, all of it handed over but its end, is told to be cleared when a cut finds it still
    playing; it was told complete and nothing else (1), and what the client had of it played on."""


VERSIONS = {version.number: version for version in (Version(1, DELTA, False, False), Version(2, TERMINAL, True, True))}
NEWEST = max(VERSIONS)
