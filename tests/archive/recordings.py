"""A conversation with the real server (scripted model, virtual time) that has a bit of everything in it, in a store."""

from __future__ import annotations

import trio
import trio.testing

from core.ports.keeping import Keeper
from core.ports.store import Body, StoredBatch
from core.session import events as e
from core.session.digest import body_digest
from tests import virtual_time
from tests.client.fake_server import silence, tone
from tests.client.talking import Line, client_on, hear_all, hear_and_cut
from tests.server.servers import open_test_server

SECRET = "my secret is swordfish"


async def _converse() -> tuple[list[StoredBatch], list[Body]]:
    async with open_test_server() as server:
        line = Line(server)
        async with client_on(line) as client:
            await client.update_session({"instructions": f"{SECRET}, the operator says"})
            await client.stream_pcm(tone(500) + silence(800))
            await hear_all(client)
            await client.send_text(f"{SECRET}, a long answer please")
            await hear_and_cut(client, 500)
            await line.cut()
            await client.send_text("and now?")
            await hear_all(client)
            session = client.session_id
        assert session is not None
        await trio.sleep(1)
        store = server.supervisor._ports.store
        batches = list(await store.read(session, limit=10**6))
        digests = {
            record.event.digest
            for batch in batches
            for record in batch.records
            if isinstance(record.event, e.Append | e.Output) and record.event.digest
        }
        return batches, [Body(digest, await store.body(session, digest)) for digest in sorted(digests)]


def record() -> tuple[list[StoredBatch], list[Body]]:
    """The log and its bodies; the same each time but for ids, times and tokens."""
    return virtual_time.run(_converse)


async def put(store: Keeper, recording: tuple[list[StoredBatch], list[Body]]) -> str:
    """Into ``store``; the session's id."""
    batches, bodies = recording
    opened = batches[0].records[0].event
    assert isinstance(opened, e.SessionOpened)
    await store.put_bodies(opened.session_id, bodies)
    await store.put_log(batches)
    assert all(body_digest(body.data) == body.digest for body in bodies)
    return opened.session_id
