"""Import and erasure beside a server that runs: its writers hardly wait, and its clients do not come in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.archive import writing
from adapters.archive.erasing import erase_session, rewritten
from adapters.archive.writing import export_session
from core.ports.keeping import Keeper
from core.ports.store import Body, StoredBatch, StoreFailed
from core.session import events as e
from core.session.state import Phase
from store.memory import open_memory_store
from store.opening import open_store
from store.sql import keeping, transaction
from tests.archive.recordings import put, record
from tests.archive.test_archive import replayed
from tests.store.backends import empty_database, in_real_time, in_real_time_for, names

Recording = tuple[list[StoredBatch], list[Body]]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record()


def is_free(path: Path) -> bool:
    """Whether another process could write to the file at once."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True


@in_real_time
async def test_writers_wait_for_an_import_s_rows_and_not_for_their_making(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.sqlite3"
    encode, write = transaction.rows_to_keep, keeping.put_events
    free: dict[str, list[bool]] = {"encoding": [], "writing": []}

    def encoding(one: StoredBatch) -> Any:
        free["encoding"].append(is_free(path))
        return encode(one)

    def writing(*given: Any, **named: Any) -> None:
        write(*given, **named)
        free["writing"].append(is_free(path))

    async with open_store(f"sqlite:///{path}") as store:
        monkeypatch.setattr(transaction, "rows_to_keep", encoding)
        monkeypatch.setattr(keeping, "put_events", writing)
        await put(store, recording)
    assert len(free["encoding"]) > 40
    assert all(free["encoding"])
    assert free["writing"] == [False], "a piece is written at once"


class Contested:
    """A store in which a server takes the session for its client as soon as it is anybody else's, for ``times`` times."""

    def __init__(self, store: Keeper, times: int) -> None:
        self._store = store
        self.times = times
        self.read_after_taking: list[int] = []
        self._taken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def take_term(self, session: str, server: str, now_ns: int) -> Any:
        owned = await self._store.take_term(session, server, now_ns)
        self._taken = True
        if self.times:
            self.times -= 1
            await self._store.take_term(session, "server-b", now_ns)
        return owned

    async def read(self, session: str, after: int = 0, limit: int = 10_000) -> Any:
        found = await self._store.read(session, after, limit)
        if self._taken:
            self.read_after_taking.append(sum(len(batch.records) for batch in found))
        return found


@in_real_time
async def test_a_client_that_comes_back_at_once_does_not_keep_its_session_from_erasure(recording: Recording) -> None:
    batches, bodies = recording
    is_open = [batch for batch in batches if not any(isinstance(r.event, e.SessionClosed) for r in batch.records)]
    async with open_memory_store() as store:
        session = await put(store, (is_open, bodies))
        quick = Contested(store, 0)
        await erase_session(quick, session, lambda: 10**18)  # type: ignore[arg-type]
        assert sum(quick.read_after_taking) == 1, "the log is folded before: nobody is quicker who has to fold it"
    async with open_memory_store() as store:
        await put(store, (is_open, bodies))
        await erase_session(Contested(store, 2), session, lambda: 10**18)  # type: ignore[arg-type]
        after = await replayed(store, session)
        assert after.exact
        assert isinstance(after.records[-1].event, e.Erased)
    async with open_memory_store() as store:
        await put(store, (is_open, bodies))
        with pytest.raises(StoreFailed, match="again and again"):
            await erase_session(Contested(store, 99), session, lambda: 10**18)  # type: ignore[arg-type]
        assert (await replayed(store, session)).state.phase is not Phase.CLOSED, "nothing was erased"


class ErasedMeanwhile:
    """A store in which the session is erased before the next call of ``name``."""

    def __init__(self, store: Keeper, name: str) -> None:
        self._store = store
        self._name = name
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._once_erased(found) if name == self._name else found

    def _once_erased(self, found: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(session: str, *given: Any) -> Any:
            self._calls += 1
            if self._calls == 2:
                await erase_session(self._store, session, lambda: 10**18)
            return await found(session, *given)

        return call


@pytest.mark.parametrize("backend", names())
@pytest.mark.parametrize(("name", "wordless"), [("read", False), ("bodies", False), ("bodies", True)])
@in_real_time_for(55)
async def test_an_export_of_a_log_that_is_erased_meanwhile_says_so(
    name: str, wordless: bool, backend: str, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, bodies = recording
    monkeypatch.setattr(writing, "READ_RECORDS", 20)
    monkeypatch.setattr(writing, "BODIES_AT_ONCE", 1)
    if wordless:  # the chain says nothing of such an erasure
        log = [one for one in rewritten(log, 10**18) if not any(isinstance(r.event, e.Erased) for r in one.records)]
    archive = tmp_path / "talk.zip"
    async with open_store("memory:" if backend == "memory" else empty_database(backend, tmp_path)) as store:
        session = await put(store, (log, bodies))
        with pytest.raises(StoreFailed, match="while it was exported"):
            await export_session(ErasedMeanwhile(store, name), session, archive)  # type: ignore[arg-type]
        assert list(tmp_path.glob("talk*")) == []
        await export_session(store, session, archive)
        assert archive.exists()
