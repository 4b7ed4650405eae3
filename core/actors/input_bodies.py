"""The bodies of input that a new worker must be fed again: pending audio and images, images of the history, the voice."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from core.session.parts import bodies_needed
from core.session.state import IMAGES_BYTES_MAX, IMAGES_MAX, REFERENCE_BYTES_MAX, SessionState

PARTS_BYTES_MAX = IMAGES_BYTES_MAX + REFERENCE_BYTES_MAX
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
        side = state.input
        items = len(side.pending) + len(side.images) + IMAGES_MAX
        many = len(self.bodies) > 2 * items + SPARE_ITEMS
        if many or self.size_bytes > 2 * side.pending_bytes + PARTS_BYTES_MAX + SPARE_BYTES:
            needed = frozenset(bodies_needed(state))
            self.bodies = {digest: body for digest, body in self.bodies.items() if digest in needed}
            self.size_bytes = sum(map(len, self.bodies.values()))
