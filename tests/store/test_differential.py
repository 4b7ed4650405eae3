"""Random programs of two servers give the same answers and the same logs in memory and in SQLite. What simulations prove on
the memory store therefore holds for the real one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports.store import Batch, SessionExists, Store, StoreError
from core.session.events import InputCleared
from tests.store.backends import OpenStore, Writer, append_all, database, new_session, two_servers, writer

SESSIONS = ("sess_1", "sess_2")


@attrs.frozen
class Step:
    """``server`` does ``what`` to ``session``; ``sizes`` are those of the batches that it queues at once."""

    what: str
    server: int
    session: str
    sizes: tuple[int, ...]
    offset: int
    """How far the writer is wrong about the log's head; mostly 0."""


STEPS = st.builds(
    Step,
    what=st.sampled_from(["create", "take", "append", "append", "append", "repeat"]),
    server=st.integers(0, 1),
    session=st.sampled_from(SESSIONS),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    offset=st.sampled_from([0, 0, 0, 0, -1, 1]),
)


@attrs.define
class Player:
    """Two servers, each with what it believes to own."""

    servers: tuple[Store, Store]
    owners: dict[tuple[int, str], Writer] = attrs.field(factory=dict)
    last: dict[str, list[Batch]] = attrs.field(factory=dict)

    async def act(self, number: int, step: Step) -> object:
        """What comes of one step. Raises what the store answers."""
        store, key = self.servers[step.server], (step.server, step.session)
        if step.what == "create":
            self.owners[key] = await new_session(store, step.session, now_ns=number)
            return None
        if step.what == "take":
            owned = await store.take_term(step.session, f"server-{step.server}", now_ns=number * 20_000)
            self.owners[key] = writer(store, owned)
            return owned
        if key not in self.owners:
            return None
        if step.what == "append" or step.session not in self.last:
            position = max(0, self.owners[key].position + step.offset)
            owner = attrs.evolve(self.owners[key], position=position, batches=number * 10)
            self.last[step.session] = [owner.batch(*[InputCleared()] * size) for size in step.sizes]
        answers = await append_all(store, *self.last[step.session])
        self.owners[key].position = (await store.session(step.session)).position
        return [type(answer) for answer in answers]


async def play(db: OpenStore, steps: Sequence[Step]) -> list[object]:
    """Run a program; everything that can be seen of it, errors by type."""
    seen: list[object] = []
    async with two_servers(db) as servers:
        player = Player(servers)
        for number, step in enumerate(steps):
            try:
                seen.append(await player.act(number, step))
            except StoreError as error:
                seen.append(type(error))
        for store in servers:
            rows = await store.sessions()
            seen += [rows, *[await store.read(row.session) for row in rows]]
    return seen


@settings(max_examples=settings().max_examples // 4)
@given(
    st.lists(STEPS, max_size=12).map(lambda steps: [attrs.evolve(steps[0], what="create"), *steps] if steps else steps)
)
def test_memory_and_sqlite_answer_alike(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seen = [trio.run(partial(play, database(backend, Path(folder)), steps)) for backend in ("memory", "sqlite")]
    assert seen[0] == seen[1]


def test_a_program_sees_what_it_should() -> None:
    """The comparison above is not one of two empty lists."""
    steps = [Step(what, 0, "sess_1", (2,), 0) for what in ("create", "append", "repeat", "create")]
    with tempfile.TemporaryDirectory() as folder:
        seen = trio.run(partial(play, database("sqlite", Path(folder)), steps))
    assert seen[:4] == [None, [type(None)], [type(None)], SessionExists]
