"""The bodies that a log names: whether they are there, and are what their names say."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from core.ports.store import BODIES_AT_ONCE, BodyDamaged, LogUnreadable, Store
from core.session import events as e
from core.session.digest import body_digest


@attrs.frozen
class BodyFault:
    """``position``: of the first event that names the body."""

    position: int
    digest: str
    problem: str


async def check_bodies(store: Store, session: str, records: Sequence[e.Record], erased: bool) -> list[BodyFault]:
    """What is wrong with the bodies of a log, in its order. ``erased``: none need be there. Raises StoreFailed."""
    named = dict[str, int]()
    for record in records:
        if isinstance(record.event, e.Append | e.Output) and record.event.digest:
            named.setdefault(record.event.digest, record.position)
    digests, done, asked = list(named), 0, BODIES_AT_ONCE
    faults: list[BodyFault] = []
    while done < len(digests):
        try:
            found = await store.bodies(session, digests[done : done + asked])
        except (BodyDamaged, LogUnreadable):
            if asked > 1:
                asked //= 4  # one of these: those before it are looked at first
                continue
            faults.append(_damaged(named, digests[done]))
            done += 1
            continue
        for digest, data in found.items():
            if data is None and not erased:
                faults.append(BodyFault(named[digest], digest, f"body {digest} is missing"))
            elif data is not None and body_digest(data) != digest:
                faults.append(_damaged(named, digest))
        done, asked = done + len(found), min(4 * asked, BODIES_AT_ONCE)
    return faults


def _damaged(named: dict[str, int], digest: str) -> BodyFault:
    return BodyFault(named[digest], digest, f"body {digest} is not what was stored: its bytes have another digest")
