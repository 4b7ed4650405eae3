"""The audio of input that is pending: a new ear must hear it again."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from core.session.state import Input

SPARE_ITEMS = 16
SPARE_BYTES = 1024 * 1024


@attrs.define
class InputBodies:
    """Bytes by digest. Invariant: at most twice what is pending and a little, in items and in bytes."""

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

    def let_go(self, side: Input) -> None:
        """Forget what is not pending any more, once it is much."""
        many = len(self.bodies) > 2 * len(side.pending) + SPARE_ITEMS
        if many or self.size_bytes > 2 * side.pending_bytes + SPARE_BYTES:
            kept = {chunk.digest for chunk in side.pending}
            self.bodies = {digest: body for digest, body in self.bodies.items() if digest in kept}
            self.size_bytes = sum(map(len, self.bodies.values()))
