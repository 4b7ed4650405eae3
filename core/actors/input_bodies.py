"""The bodies of input that a new worker must be fed again: pending audio and images, images of the history, the voice."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from core.session.parts import amount_needed, bodies_needed
from core.session.state import SessionState

SPARE_ITEMS = 16
SPARE_BYTES = 1024 * 1024


@attrs.define
class InputBodies:
    """Bytes by digest. Invariant: at most twice what is needed and a little, in items and in bytes."""

    bodies: dict[str, bytes] = attrs.field(factory=dict)
    size_bytes: int = 0

    def keep(self, bodies: Mapping[str, bytes]) -> None:
        """Remember them."""
        for digest, body in bodies.items():
            if digest not in self.bodies:
                self.bodies[digest] = body
                self.size_bytes += len(body)

    def get(self, digest: str) -> bytes | None:
        """None: it was let go, or never read back."""
        return self.bodies.get(digest)

    def let_go(self, state: SessionState) -> None:
        """Forget what a new worker has no need of any more, once it is much."""
        if len(self.bodies) <= SPARE_ITEMS and self.size_bytes <= SPARE_BYTES:
            return
        items, size_bytes = amount_needed(state)
        if len(self.bodies) > 2 * items + SPARE_ITEMS or self.size_bytes > 2 * size_bytes + SPARE_BYTES:
            needed = frozenset(bodies_needed(state))
            self.bodies = {digest: body for digest, body in self.bodies.items() if digest in needed}
            self.size_bytes = sum(map(len, self.bodies.values()))
