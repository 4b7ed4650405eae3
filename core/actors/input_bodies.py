"""The audio of input that is pending: a new ear must hear it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from core.session.state import Chunk

SPARE = 16


@attrs.define
class InputBodies:
    """Bytes by digest. Invariant: never many more than the pending chunks are."""

    bodies: dict[str, bytes] = attrs.field(factory=dict)

    def keep(self, bodies: Mapping[str, bytes]) -> None:
        """Remember them."""
        self.bodies.update(bodies)

    def get(self, digest: str) -> bytes | None:
        """None: it was let go, or never read back."""
        return self.bodies.get(digest)

    def let_go(self, pending: Iterable[Chunk], count: int) -> None:
        """Forget what is not among the ``count`` chunks of ``pending`` any more (now and then)."""
        if len(self.bodies) > 2 * count + SPARE:
            self.bodies = {chunk.digest: self.bodies[chunk.digest] for chunk in pending if chunk.digest in self.bodies}
