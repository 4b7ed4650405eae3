"""A store that is damaged, or that its URL asks something odd of: each command says it in a sentence, with its exit code, and
makes and changes nothing."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from adapters.command_line.main import main
from store.opening import open_store
from store.sql.engines import make_engines
from tests.archive.recordings import put, record

PAGE_BYTES = 4_096
SESSION = "a session"

COMMANDS: dict[str, tuple[str, ...]] = {
    "serve": ("serve", "--port", "0", "--model", "scripted"),
    "list": ("sessions", "list"),
    "show": ("sessions", "show", SESSION),
    "export": ("sessions", "export", SESSION),
    "prune": ("sessions", "prune", "--older-than", "0s"),
    "erase": ("sessions", "erase", SESSION, "--yes"),
    "replay": ("replay", SESSION),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """A store with a session in it, and the session's id."""
    path = tmp_path_factory.mktemp("good") / "log.sqlite3"
    recording = record()

    async def fill() -> str:
        async with open_store(f"sqlite:///{path}") as store:
            return await put(store, recording)

    session = trio.run(fill)
    return path.read_bytes(), session


def page_of(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchall()
    connection.close()
    return int(page)


def with_noise(path: Path, begin: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[begin : begin + size] = random.Random(1).randbytes(size)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"these are not the bytes of a database" * 100),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut in its head": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "spoiled in its head": lambda path: with_noise(path, 100, 300),
}
"""What no command can open."""


def duologue(path: Path, words: tuple[str, ...], session: str) -> Result:
    words = tuple(session if word == SESSION else word for word in words)
    return CliRunner().invoke(main, [*words, "--store", f"sqlite:///{path}"])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_store_is_said_with_what_to_do(
    name: str, damage: str, good: tuple[bytes, str], tmp_path: Path
) -> None:
    path = tmp_path / "log.sqlite3"
    path.write_bytes(good[0])
    DAMAGES[damage](path)
    before = path.read_bytes()
    result = duologue(path, COMMANDS[name], good[1])
    assert result.exit_code == 3, result.output
    assert f"the store at sqlite:///{path}" in result.output
    assert "SQLITE_" in result.output
    assert "bring back a copy" in result.output
    assert path.read_bytes() == before, "what can be saved of it is still there"


@pytest.mark.parametrize("name", ["show", "export", "prune", "erase", "replay"])
def test_a_store_that_is_damaged_within_is_said_too(name: str, good: tuple[bytes, str], tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    path.write_bytes(good[0])
    with_noise(path, (page_of(path, "events") - 1) * PAGE_BYTES, 300)
    result = duologue(path, COMMANDS[name], good[1])
    assert result.exit_code == 3, result.output
    assert ".recover" in result.output
    assert [file.name for file in tmp_path.iterdir() if file.suffix in (".zip", ".part")] == []
    listed = duologue(path, COMMANDS["list"], good[1])
    assert listed.exit_code == 0
    assert "damaged" in listed.output, "the other sessions are listed all the same"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///{}/new.sqlite3?mode=ro", "takes no options, and the URL has 'mode'"),
        ("sqlite:///{}/new.sqlite3?timeout=5&uri=true", "'timeout', 'uri'"),
        ("sqlite+pysqlite:///{}/new.sqlite3?mode=ro", "'mode'"),
        ("sqlite://host{}/new.sqlite3", "with three slashes"),
        ("postgresql://host/name?sslmod=require", "no option 'sslmod'"),
        ("postgresql://host/name?sslmode=require&sslmode=disable", "'sslmode' more than once"),
    ],
)
@pytest.mark.parametrize("name", [*COMMANDS, "import"])
def test_an_option_that_a_store_does_not_know_is_refused_by_name(
    name: str, url: str, says: str, tmp_path: Path
) -> None:
    words = COMMANDS.get(name, ("sessions", "import", __file__))
    result = CliRunner().invoke(main, [*words, "--store", url.format(tmp_path)])
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == [], "no file of that name is made"


def test_options_that_postgresql_knows_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def connect(*_: object, **arguments: object) -> None:
        given.append(arguments)
        raise ConnectionRefusedError

    pytest.importorskip("psycopg")
    monkeypatch.setattr("psycopg.connect", connect)
    url = "postgresql://host/name?sslmode=require&connect_timeout=9&options=-c search_path=talks"
    with pytest.raises(ConnectionRefusedError):
        make_engines(url, "full")
    assert given[0]["sslmode"] == "require"
    assert given[0]["connect_timeout"] == "9"
    assert str(given[0]["options"]).startswith("-c search_path=talks -c synchronous_commit=on")
