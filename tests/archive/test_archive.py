"""Export, import, erase, prune: nothing is lost on the way, nothing is left that should be gone."""

from __future__ import annotations

import json
import sqlite3
import wave
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
import trio
from click.testing import CliRunner

from adapters.archive.bringing_in import import_session
from adapters.archive.erasing import erase_session
from adapters.archive.layout import EVENTS, MANIFEST
from adapters.archive.masking import KEPT_FIELDS, dots, masked
from adapters.archive.pruning import choose, prune_sessions
from adapters.archive.reading_lines import ArchiveInvalid
from adapters.archive.writing import export_session
from adapters.command_line.main import main
from adapters.replay.replaying import Replay, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.keeping import Keeper, Usage
from core.ports.store import (
    Body,
    PositionConflict,
    SessionExists,
    SessionUnknown,
    StoredBatch,
    TermRefused,
)
from core.session import events as e
from core.session.decisions.cut import LANE_FULL
from core.session.events import EVENT_TYPES
from core.session.state import Phase
from store.codec import RecordInvalid
from store.memory import open_memory_store
from store.opening import open_store
from store.sql import keeping
from tests.archive.recordings import SECRET, put, record
from tests.store.backends import empty_database, in_real_time, names, new_session

Recording = tuple[list[StoredBatch], list[Body]]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record()


async def replayed(store: Keeper, session: str) -> Replay:
    return await replay_session(store, session, make_projection, encode_caused)


@pytest.mark.parametrize("backend", names())
@in_real_time
async def test_a_session_goes_to_another_machine_and_is_the_same_there(
    backend: str, recording: Recording, tmp_path: Path
) -> None:
    path = tmp_path / "talk.zip"
    async with open_memory_store() as here:
        session = await put(here, recording)
        manifest = await export_session(here, session, path)
        before = await replayed(here, session)
        row = await here.session(session)
    url = "memory:" if backend == "memory" else empty_database(backend, tmp_path)
    async with open_store(url) as there:
        imported = await import_session(there, path)
        after = await replayed(there, session)
        assert before.exact
        assert after.exact
        assert imported.replay.exact
        assert (after.state, after.records) == (before.state, before.records)
        assert await there.session(session) == row
        for body in recording[1]:
            assert await there.body(session, body.digest) == body.data
        assert list(await there.read(session, limit=10**6)) == recording[0]
        with pytest.raises(SessionExists):
            await import_session(there, path)
        again = tmp_path / "again.zip"
        assert await export_session(there, session, again) == manifest
        assert again.read_bytes() == path.read_bytes(), "the same session makes the same archive"


@in_real_time
async def test_an_archive_is_read_by_people(recording: Recording, tmp_path: Path) -> None:
    async with open_memory_store() as store:
        session = await put(store, recording)
        await export_session(store, session, tmp_path / "talk.zip")
    with zipfile.ZipFile(tmp_path / "talk.zip") as archive:
        manifest = json.loads(archive.read(MANIFEST))
        lines = [json.loads(line) for line in archive.read(EVENTS).splitlines()]
        assert (manifest["session"], manifest["events"]) == (session, len(lines))
        assert lines[0]["type"] == "session_opened"
        sounds = [name for name in archive.namelist() if name.endswith(".wav")]
        assert len(sounds) == len(recording[1])
        with wave.open(BytesIO(archive.read(sounds[0]))) as sound:
            assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24_000, 1, 2)


def spoiled(archive: bytes) -> Iterator[bytes]:
    """The archive with one thing wrong in it, below what its files say: the library has another error for each."""
    compressed = archive.index(EVENTS.encode()) + len(EVENTS) + 10
    directory = archive.index(b"PK\x01\x02")
    end = archive.rindex(b"PK\x05\x06")
    encrypted, method, offset = directory + 8, directory + 10, end + 16
    for place, value in (
        (compressed, archive[compressed] ^ 0xFF),
        (encrypted, archive[encrypted] | 1),
        (method, zipfile.ZIP_BZIP2),
        (method, zipfile.ZIP_LZMA),
        (method, 99),
        (offset + 3, 0x7F),
    ):
        yield archive[:place] + bytes([value]) + archive[place + 1 :]
    yield archive[: len(archive) // 2]
    yield b""


@in_real_time
async def test_a_damaged_archive_is_refused_and_nothing_of_it_is_kept(recording: Recording, tmp_path: Path) -> None:
    good = tmp_path / "talk.zip"
    async with open_memory_store() as store:
        session = await put(store, recording)
        await export_session(store, session, good)
    with zipfile.ZipFile(good) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sound = next(name for name in files if name.endswith(".wav"))
    newer = json.dumps({**json.loads(files[MANIFEST]), "version": 99}).encode()
    elsewhere = files[MANIFEST].replace(sound.encode(), f"../../../..{__file__}".encode())
    changes: list[dict[str, bytes | None]] = [
        {EVENTS: files[EVENTS].replace(b"session_opened", b"session_opener", 1)},
        {EVENTS: files[EVENTS].rpartition(b"\n")[0].rpartition(b"\n")[0]},
        {EVENTS: None},
        {MANIFEST: None},
        {MANIFEST: b"[]"},
        {MANIFEST: b"[" * 100_000},
        {MANIFEST: newer},
        {MANIFEST: elsewhere},
        {sound: files[sound][:-2] + b"zz"},
        {sound: b"no sound"},
        {sound: files[sound][:16] + b"\xff" + files[sound][17:]},
        {sound: None},
    ]
    async with open_memory_store() as there:
        for number, change in enumerate(changes):
            bad = tmp_path / f"bad-{number}.zip"
            with zipfile.ZipFile(bad, "w") as archive:
                for name, content in {**files, **change}.items():
                    if content is not None:
                        archive.writestr(name, content)
            with pytest.raises(ArchiveInvalid):
                await import_session(there, bad)
            with pytest.raises(SessionUnknown):
                await there.session(session)
        for number, bytes_ in enumerate(spoiled(good.read_bytes())):
            bad = tmp_path / f"spoiled-{number}.zip"
            bad.write_bytes(bytes_)
            with pytest.raises(ArchiveInvalid):
                await import_session(there, bad)
        (tmp_path / "no.zip").write_bytes(b"no zip")
        with pytest.raises(ArchiveInvalid, match="a file that `duologue sessions export` wrote"):
            await import_session(there, tmp_path / "no.zip")
        await import_session(there, good)


# --- erasure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", names())
@in_real_time
async def test_what_was_said_is_gone_and_the_log_still_folds(
    backend: str, recording: Recording, tmp_path: Path
) -> None:
    url = "memory:" if backend == "memory" else empty_database(backend, tmp_path)
    async with open_store(url) as store:
        session = await put(store, recording)
        other = await new_session(store, "other")
        await other.append(bodies=(b"another person's",))
        before = await replayed(store, session)
        erasure = await erase_session(store, session, lambda: before.state.at_ns + 1)
        assert (erasure.was_exact, erasure.already) == (True, False)
        after = await replayed(store, session)
        assert after.exact, "the chain is computed anew"
        assert isinstance(after.records[-1].event, e.Erased)
        _same_but_for_words(before, after)
        words = json.dumps([str(one.event) for one in after.records])
        assert SECRET not in words
        assert "swordfish" not in words
        for body in recording[1]:
            with pytest.raises(KeyError):
                await store.body(session, body.digest)
        assert await store.body("other", other.batch(bodies=(b"another person's",)).bodies[0].digest)
        assert (await erase_session(store, session, lambda: 1)).already
        assert (await replayed(store, session)).records == after.records


def _same_but_for_words(before: Replay, after: Replay) -> None:
    assert after.state.phase is Phase.CLOSED
    assert len(after.records) == len(before.records) + 1
    for was, now in zip(before.records, after.records, strict=False):
        assert (was.position, was.epoch, was.at_ns, type(was.event)) == (
            now.position,
            now.epoch,
            now.at_ns,
            type(now.event),
        )
    for response_id, was in before.state.responses.items():
        now = after.state.responses[response_id]
        assert (was.produced_ms, was.played_ms, was.status, len(was.text)) == (
            now.produced_ms,
            now.played_ms,
            now.status,
            len(now.text),
        )


@pytest.mark.parametrize("largest_that_is_made_anew", [0, 2**40])
@in_real_time
async def test_nothing_of_it_is_left_in_the_file(
    largest_that_is_made_anew: int, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "VACUUM_BYTES_MAX", largest_that_is_made_anew)
    path = tmp_path / "log.sqlite3"
    async with open_store(f"sqlite:///{path}") as store:
        session = await put(store, recording)
        sound = max(recording[1], key=lambda body: len(body.data)).data[2_000:2_100]
        await erase_session(store, session, lambda: 1)
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(b"swordfish" in content for content in files)
    assert not any(sound in content for content in files)


@in_real_time
async def test_a_session_that_goes_on_is_ended_first(recording: Recording, tmp_path: Path) -> None:
    batches, bodies = recording
    is_open = [batch for batch in batches if not any(isinstance(r.event, e.SessionClosed) for r in batch.records)]
    async with open_memory_store() as store:
        session = await put(store, (is_open, bodies))
        row = await store.session(session)
        assert not row.closed
        await erase_session(store, session, lambda: row.updated_ns + 5)
        after = await replayed(store, session)
        assert after.exact
        assert [record.event for record in after.records][-2:] == [e.SessionClosed("erased"), e.Erased()]
        assert (await store.session(session)).term == row.term + 1, "its server is fenced"


WORDS = "swordfish and words"


def _full_of_words(cls: type[Any]) -> Any:
    """A value of an attrs class that has words in every text, however deep."""
    return cls(**{name: _worded(kind) for name, kind in get_type_hints(cls).items()})


def _worded(kind: Any) -> Any:
    made, args = get_origin(kind), get_args(kind)
    several = next((one for one in args if get_origin(one) is tuple), None)
    if made is not tuple and several is not None:
        return _worded(several)
    if kind is str or (str in args and made is not tuple):
        return WORDS
    if made is tuple:
        return tuple(_worded(one) for one in args if one is not Ellipsis)
    real = next((one for one in args if attrs.has(one)), kind)
    if attrs.has(real):
        return _full_of_words(real)
    return next((one for one in (*args, kind) if one in (int, float, bool)), int)(1)


def _worded_fields(value: Any) -> set[str]:
    """The names of fields, however deep, that have words in them."""
    found: set[str] = set()
    for field in attrs.fields(type(value)):
        inner = getattr(value, field.name)
        parts = [one for one in (inner if isinstance(inner, tuple) else (inner,)) if attrs.has(type(one))]
        if parts:
            found.update(*map(_worded_fields, parts))
        elif "swordfish" in str(inner):
            found.add(field.name)
    return found


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_each_text_of_an_event_is_masked_or_named_as_kept(cls: type[Any]) -> None:
    event = _full_of_words(cls)
    left = _worded_fields(masked(event))
    kept = KEPT_FIELDS - {"reason"} if cls is e.SessionClosed else KEPT_FIELDS
    assert left == _worded_fields(event) & kept


def test_an_end_s_reason_is_kept_where_it_is_the_server_s_own() -> None:
    own = ("client_close", "idle_ttl_expired", LANE_FULL, "erased")
    assert [masked(e.SessionClosed(reason)) for reason in own] == [e.SessionClosed(reason) for reason in own]
    assert masked(e.SessionClosed("internal_error:KeyError")) == e.SessionClosed("internal_error:" + "•" * 8)
    assert masked(e.SessionClosed("I am Ann")) == e.SessionClosed("• •• •••")


def test_dots_are_as_many_as_letters() -> None:
    assert dots("a bc\nd") == "• ••\n•"


@pytest.mark.parametrize("backend", names())
@in_real_time
async def test_a_log_is_replaced_only_as_it_was_read(backend: str, recording: Recording, tmp_path: Path) -> None:
    url = "memory:" if backend == "memory" else empty_database(backend, tmp_path)
    async with open_store(url) as store:
        session = await put(store, recording)
        row = await store.session(session)
        owned = await store.take_term(session, "server-b", row.updated_ns)
        stale = type(owned)(session, owned.term - 1, owned.position)
        with pytest.raises(TermRefused):
            await store.put_log(recording[0], replacing=stale)
        with pytest.raises(PositionConflict):
            await store.put_log(recording[0], replacing=type(owned)(session, owned.term, owned.position - 1))
        assert await store.body(session, recording[1][0].digest)
        await store.delete(session)
        with pytest.raises(SessionUnknown):
            await store.put_log(recording[0], replacing=owned)
        with pytest.raises(SessionUnknown):
            await store.delete(session)


@pytest.mark.parametrize("backend", names())
@in_real_time
async def test_a_log_that_not_every_backend_could_hold_is_put_into_none(
    backend: str, recording: Recording, tmp_path: Path
) -> None:
    first, *others, last = recording[0]
    opened, owner = first.records
    elsewhere = attrs.evolve(owner, event=e.OwnerChanged(1, "a\0b"))
    logs = [
        [first, *others, attrs.evolve(last, term=2**70)],
        [first, *others, attrs.evolve(last, term=0)],
        [first, *others, attrs.evolve(last, batch_id="a\0b")],
        [first, *others, attrs.evolve(last, rows=(attrs.evolve(last.rows[0], body='"\0"'), *last.rows[1:]))],
        [attrs.evolve(first, records=(opened, elsewhere)), *others, last],
    ]
    async with open_store("memory:" if backend == "memory" else empty_database(backend, tmp_path)) as store:
        for log in logs:
            with pytest.raises(RecordInvalid):
                await store.put_log(log)
            assert await store.sessions() == []
        session = await put(store, recording)
        await store.delete(session)


# --- pruning --------------------------------------------------------------------------------------------------------


def test_the_oldest_closed_sessions_go_first() -> None:
    usage = [Usage("a", 1, True, 10, 90), Usage("b", 2, False, 0, 100), Usage("c", 3, True, 0, 100)]

    def chosen(before_ns: int | None, keep: int | None) -> list[str]:
        return [one.session for one in choose(usage, 0, before_ns, keep)]

    assert chosen(None, 300) == []
    assert chosen(None, 299) == ["a"]
    assert chosen(None, 0) == ["a", "c"], "open ones stay"
    assert chosen(3, None) == ["a"]
    assert chosen(4, None) == ["a", "c"]
    assert chosen(2, 150) == ["a", "c"]


@pytest.mark.parametrize("backend", names())
@in_real_time
async def test_pruned_sessions_are_gone(backend: str, recording: Recording, tmp_path: Path) -> None:
    url = "memory:" if backend == "memory" else empty_database(backend, tmp_path)
    async with open_store(url) as store:
        session = await put(store, recording)
        await new_session(store, "still open")
        usage = {one.session: one for one in await store.usage()}
        assert usage[session].bodies_bytes == sum(len(body.data) for body in recording[1])
        assert usage[session].events_bytes > 1_000
        done = await prune_sessions(store, 0, None, 0, dry_run=True)
        assert done.pruned == (session,)
        assert await store.session(session)
        done = await prune_sessions(store, 0, None, 0)
        assert (done.pruned, done.kept) == ((session,), 1)
        with pytest.raises(SessionUnknown):
            await store.read(session)
        with pytest.raises(KeyError):
            await store.body(session, recording[1][0].digest)


# --- the commands ---------------------------------------------------------------------------------------------------


def command(*words: str) -> str:
    result = CliRunner().invoke(main, ["sessions", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", [["list"], ["show", "x"], ["prune", "--older-than", "1d"], ["import", __file__]])
def test_a_store_that_cannot_be_is_said_in_a_sentence(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["sessions", *words, "--store", "nonsense"])
    assert result.exit_code == 2
    assert "a store URL looks like sqlite:///" in result.output
    result = CliRunner().invoke(main, ["sessions", *words, "--store", "oracle://me:s3cr@t@host/name"])
    assert result.exit_code == 2
    assert "oracle://me:***@host/name" in result.output


def test_the_commands(recording: Recording, tmp_path: Path) -> None:
    here, there = f"sqlite:///{tmp_path}/here.sqlite3", f"sqlite:///{tmp_path}/there.sqlite3"

    async def fill() -> str:
        async with open_store(here) as store:
            return await put(store, recording)

    session = trio.run(fill)
    file = str(tmp_path / "talk.zip")
    assert "31 sounds and pictures" in command("export", session, file, "--store", here)
    assert "replays exactly" in command("import", file, "--store", there)
    beginning = CliRunner().invoke(main, ["sessions", "erase", session[:-4], "--yes", "--store", there])
    assert beginning.exit_code == 2
    assert f"give the whole id: {session}" in beginning.output
    assert "without words" in command("erase", session, "--yes", "--store", there)
    assert "1 sessions" in command("prune", "--keep-at-most", "0B", "--dry-run", "--store", here)
    assert "0 sessions" in command("prune", "--older-than", "2000w", "--store", here)
    assert "1 sessions" in command("prune", "--older-than", "0s", "--store", here)
    assert f"No sessions in {here} yet" in command("list", "--store", here), (
        "whoever looks into the wrong store is told so"
    )
    for words in (["export", "ghost"], ["erase", "ghost", "--yes"], ["prune"], ["prune", "--older-than", "soon"]):
        result = CliRunner().invoke(main, ["sessions", *words, "--store", there])
        assert result.exit_code != 0
        assert "Traceback" not in result.output
    result = CliRunner().invoke(main, ["sessions", "import", file, "--store", there])
    assert "is in the store already" in result.output
    connection = sqlite3.connect(tmp_path / "there.sqlite3")
    assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    connection.close()
