"""`duologue replay` and `duologue sessions list` on a session that was recorded, and on logs that are damaged."""

from __future__ import annotations

import io
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from rich.console import Console

from adapters.command_line.main import main
from adapters.command_line.reading import one_line
from adapters.command_line.replay import _print_lines
from adapters.replay import replaying
from adapters.replay.conversation import Line
from core.ports.store import StoredBatch, StoreFailed
from store.opening import open_store
from store.sql.sql_store import SqlStore
from tests.archive.made_logs import LogMaker
from tests.archive.recordings import SECRET, put, record

Recording = tuple[Any, Any]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record()


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    """A SQLite store with the recorded session in it."""
    path = tmp_path / "log.sqlite3"

    async def fill() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await put(store, recording)

    trio.run(fill)
    return path


def change(file: Path, statement: str) -> None:
    """Damage the store behind the server's back."""
    connection = sqlite3.connect(file)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def session_in(file: Path) -> str:
    connection = sqlite3.connect(file)
    (session,) = connection.execute("SELECT session FROM sessions").fetchone()
    connection.close()
    return str(session)


def duologue(file: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--store", f"sqlite:///{file}"])


def test_an_exact_replay_prints_the_talk_with_what_was_not_heard(file: Path) -> None:
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 0, result.output
    *talk, verdict = result.output.splitlines()
    assert re.fullmatch(r"exact: \d+ events, \d+ batches, \d+ wire events replay as recorded; .* closed", verdict)
    assert [line.split()[2] for line in talk] == ["user", "assistant"] * 3, "one line a turn"
    (cut,) = [line for line in talk if "cancelled" in line]
    assert "[not heard: " in cut
    told = json.loads(duologue(file, "replay", session_in(file), "--json").output)
    assert (told["exact"], told["mismatch"], told["damage"]) == (True, None, None)
    assert [turn["cut"] != "" for turn in told["turns"] if "cancelled" in " ".join(turn["notes"])] == [True]


def test_on_a_terminal_what_was_not_heard_is_struck_out() -> None:
    console = Console(force_terminal=True, width=60, record=True, file=io.StringIO())
    _print_lines(console, [Line(1_500, "assistant", "The cat was", " tail tucked under", ("1.2 s heard",))])
    styled = console.export_text(styles=True)
    (struck,) = re.findall(r"\x1b\[(?:\d+;)*9m([^\x1b]*)", styled)
    assert struck.strip() == "tail tucked under"


def test_a_changed_event_is_a_difference_with_its_position(file: Path) -> None:
    change(file, "UPDATE events SET body = replace(body, 'swordfish,', 'sailfish,') WHERE position = 35")
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 1
    assert "differs at position 35" in result.output
    told = json.loads(duologue(file, "replay", session_in(file), "--json").output)
    assert (told["exact"], told["mismatch"]["position"]) == (False, 35)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("DELETE FROM events WHERE position = 20", "position 20 is missing"),
        ("UPDATE events SET body = '{torn' WHERE position = 20", "position 20: output version"),
        ("UPDATE events SET type = 'nonsense' WHERE position = 20", "position 20: unknown event type 'nonsense'"),
        ("UPDATE events SET version = 99 WHERE position = 20", "position 20: output version 99 is newer"),
    ],
)
def test_a_damaged_log_is_told_up_to_the_damage(file: Path, damage: str, says: str) -> None:
    change(file, damage)
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 3
    *talk, verdict = result.output.splitlines()
    assert re.match(r"damaged from position (19|20) on: ", verdict)
    assert says in verdict
    assert len(talk) == 2, "the turns before the damage"
    told = json.loads(duologue(file, "replay", session_in(file), "--json").output)
    assert not told["exact"]
    assert says in told["damage"]["problem"]
    assert len(told["turns"]) == 2


def test_a_log_that_lost_its_end_is_damaged(file: Path) -> None:
    connection = sqlite3.connect(file)
    (end,) = connection.execute("SELECT max(position) FROM events").fetchone()
    connection.close()
    change(file, f"DELETE FROM events WHERE position = {end}")
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 3
    assert f"the log ends at position {end - 1}, and went on to {end}" in result.output


def test_a_body_that_is_not_what_was_stored_is_damage(file: Path) -> None:
    change(file, "UPDATE bodies SET data = zeroblob(size_bytes) WHERE rowid = 3")
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 3
    assert re.search(r"damaged at position \d+: body [0-9a-f]{32} is not what was stored", result.output)
    assert "the log itself is exact" in result.output
    change(file, "DELETE FROM bodies WHERE rowid = 5")
    assert "(and 1 more)" in duologue(file, "replay", session_in(file)).output
    told = json.loads(duologue(file, "replay", session_in(file), "--json").output)
    assert (told["exact"], told["mismatch"], len(told["bodies"])) == (False, None, 2)
    change(file, "UPDATE events SET at_ns = at_ns + 1 WHERE position = 35")
    result = duologue(file, "replay", session_in(file))
    assert (result.exit_code, "bodies that are missing or damaged: 2" in result.output) == (1, True)


def test_records_that_do_not_fold_any_more_are_damage(file: Path) -> None:
    change(file, 'UPDATE events SET body = replace(body, \'"echo":"\', \'"echo":"{\') WHERE position = 1')
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 3
    assert "its records are not those that were written (position 1), and do not fold" in result.output


def test_a_text_that_is_none_is_damage_and_no_store_that_is_away(file: Path) -> None:
    change(file, "UPDATE events SET body = CAST(x'7b22ff22' AS TEXT) WHERE position = 20")
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 3
    assert "damaged from position 20 on: a text in it is no UTF-8" in result.output.replace(
        "position 19", "position 20"
    )


def test_an_erased_session_is_called_that(file: Path) -> None:
    session = session_in(file)
    assert duologue(file, "sessions", "erase", session, "--yes").exit_code == 0
    result = duologue(file, "replay", session)
    assert result.exit_code == 0
    assert "erased: " in result.output
    assert "an older rule" not in result.output
    told = json.loads(duologue(file, "replay", session, "--json").output)
    assert (told["exact"], told["erased"], told["bodies"]) == (True, True, [])
    change(file, "UPDATE events SET at_ns = at_ns + 1 WHERE position = 35")
    assert "differs at position 35" in duologue(file, "replay", session).output, "what is left is still checked"


@pytest.mark.parametrize(("older", "which"), [(100, "all"), (5, "5")])
def test_a_log_of_an_older_version_is_not_said_to_be_checked_as_a_new_one(
    tmp_path: Path, older: int, which: str
) -> None:
    log, path = LogMaker(["say", "commit", "unit", "unit", "done", "type", "cut"]), tmp_path / "old.sqlite3"

    async def fill() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.put_bodies("made", log.bodies)
            await store.put_log(log.relinked([True] * older))

    trio.run(fill)
    result = duologue(path, "replay", "made")
    assert result.exit_code == 0
    assert "exact: " in result.output
    assert f"{which} of the {len(log.batches)} batches are by an older rule" in result.output
    told = json.loads(duologue(path, "replay", "made", "--json").output)
    assert told["batches_by_an_older_rule"] == min(older, len(log.batches))
    assert duologue(path, "sessions", "erase", "made", "--yes").exit_code == 0
    result = duologue(path, "replay", "made")
    assert result.exit_code == 0
    assert "erased: " in result.output
    assert "an older rule" not in result.output, "the erasure wrote it anew"


def test_a_store_that_goes_away_says_nothing_of_the_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> list[StoredBatch]:
        raise StoreFailed("OperationalError: no code")

    monkeypatch.setattr(SqlStore, "read", read)
    result = duologue(file, "replay", session_in(file))
    assert result.exit_code == 2
    assert "cannot be read: OperationalError" in result.output
    assert "damaged" not in result.output


def test_damage_is_closed_in_on_by_few_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "READ_RECORDS", 64)
    change(file, "UPDATE events SET body = '{torn' WHERE position = 60")
    read, limits = SqlStore.read, list[int]()

    async def noted(store: SqlStore, session: str, after: int = 0, limit: int = 1) -> Sequence[StoredBatch]:
        limits.append(limit)
        return await read(store, session, after, limit)

    monkeypatch.setattr(SqlStore, "read", noted)
    result = duologue(file, "replay", session_in(file))
    assert (result.exit_code, "position 60: " in result.output) == (3, True)
    small = limits.index(min(limits[:-1]))
    assert max(limits[small + 1 :]) > limits[small], "pages grow again"
    assert len(limits) < 30


def test_what_is_not_there_has_a_code_of_its_own(file: Path, tmp_path: Path) -> None:
    unknown = duologue(file, "replay", "ghost")
    assert unknown.exit_code == 2
    assert "duologue sessions list" in unknown.output
    nowhere = duologue(tmp_path / "nothing.sqlite3", "replay", "ghost")
    assert nowhere.exit_code == 2
    assert "there is no store at" in nowhere.output


def test_the_list_says_how_a_session_ended_and_its_first_words(file: Path) -> None:
    result = duologue(file, "sessions", "list")
    assert result.exit_code == 0, result.output
    heads, row = result.output.splitlines()
    assert heads.endswith("  first words")
    assert re.match(rf"{session_in(file)}  2023-11-14 22:13:20  \d+ s +\d+ +closed  turn 1$", row)
    told = json.loads(duologue(file, "sessions", "list", "--json").output)
    assert (told["ended"], told["words"]) == ("client_close", "turn 1")


def test_the_list_shows_typed_words_other_endings_and_damage(file: Path) -> None:
    change(file, "DELETE FROM events WHERE type = 'input_transcript'")
    assert SECRET[:15] in duologue(file, "sessions", "list").output
    change(file, "UPDATE events SET body = '{\"reason\": \"it \\u001b[31mrained\"}' WHERE type = 'session_closed'")
    assert "closed: it [31mrained" in duologue(file, "sessions", "list").output, "nothing in it steers the terminal"
    change(file, "UPDATE events SET body = 'torn' WHERE type = 'session_closed'")
    listed = duologue(file, "sessions", "list")
    assert listed.exit_code == 0
    assert "  damaged" in listed.output


def test_the_list_tells_what_is_erased_from_what_is_only_ended_for_it(file: Path) -> None:
    change(file, "UPDATE events SET body = '{\"reason\": \"erased\"}' WHERE type = 'session_closed'")
    assert "  not erased yet  " in duologue(file, "sessions", "list").output, "it was broken off: the words are there"
    assert duologue(file, "sessions", "erase", session_in(file), "--yes").exit_code == 0
    listed = duologue(file, "sessions", "list").output
    assert "  erased  " in listed
    assert "turn 1" not in listed


@pytest.mark.parametrize(("dialect", "state"), [("duplex", "never came back"), ("openai", "hung up")])
def test_a_client_that_cannot_come_back_hung_up(file: Path, dialect: str, state: str) -> None:
    """With OpenAI's clients a session ends with its connection: nothing went wrong."""
    change(file, f"UPDATE sessions SET dialect = '{dialect}'")
    change(file, "UPDATE events SET body = '{\"reason\": \"disconnect_grace_expired\"}' WHERE type = 'session_closed'")
    assert f"  {state}  " in duologue(file, "sessions", "list").output


def test_words_of_a_client_cannot_steer_the_terminal() -> None:
    assert one_line("a\x1b[2Jb\nc\x07\u202ed\x9b31m") == "a [2Jb c d 31m"
