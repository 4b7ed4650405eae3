"""A process that appends until it is killed, and says on its standard output what was acknowledged.

``crash_writer.py URL SERVER [BATCHES]``: takes the term of each of four sessions (creating what is not there) and
appends batches of three records with a body, many in flight. Lines: ``ready``; ``ack SESSION BATCH LAST_POSITION
DIGEST``; ``failed SESSION BATCH CODE`` (the batch is then appended again until it is acknowledged, as an actor
settles it). With BATCHES it ends after so many a session.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

import trio

from core.ports.store import SessionUnknown, Store, StoreError
from core.session.digest import body_digest
from core.session.events import Append, InputCleared
from store.opening import open_store
from tests.store.backends import Writer, append, opened, writer

SESSIONS = ("sess_0", "sess_1", "sess_2", "sess_3")
MAX_SETTLING = 50


def say(*words: object) -> None:
    """One write: a killed process leaves whole lines."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def own(store: Store, session: str, server: str) -> Writer:
    try:
        return writer(store, await store.take_term(session, server, time.time_ns()))
    except SessionUnknown:
        return writer(store, await store.create(session, server, opened(session), time.time_ns()))


async def keep_appending(owner: Writer, numbers: range | count[int]) -> None:
    for number in numbers:
        data = f"{owner.session} {owner.term} {number}".encode() * 40
        digest = body_digest(data)
        batch = owner.batch(InputCleared(), Append("audio", digest, len(data), 0, 0), InputCleared(), bodies=(data,))
        for _ in range(MAX_SETTLING):
            try:
                await append(owner.store, batch)
            except StoreError as error:
                say("failed", owner.session, batch.batch_id, error)
            else:
                say("ack", owner.session, batch.batch_id, batch.records[-1].position, digest)
                break


async def main(url: str, server: str, batches: int | None) -> None:
    async with open_store(url) as store, trio.open_nursery() as nursery:
        owners = [await own(store, session, server) for session in SESSIONS]
        say("ready")
        for owner in owners:
            nursery.start_soon(keep_appending, owner, count() if batches is None else range(batches))


if __name__ == "__main__":
    url, server, *batches = sys.argv[1:]
    trio.run(main, url, server, int(batches[0]) if batches else None)
