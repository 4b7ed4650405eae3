"""A second talk into the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.client.player import Player
from adapters.command_line.talk_folder import FolderTaken, prepare
from adapters.command_line.talk_record import TalkRecord
from adapters.command_line.talk_script import Microphone
from tests.client.fake_server import FakeServer
from tests.command_line.test_talk import run_talk, running


def saved(folder: Path, answers: int) -> None:
    """What a talk with so many answers leaves."""
    record = TalkRecord(Microphone(24_000), Player(0, rate=24_000))
    record.keep(folder)
    record.save(folder)
    summary = record.summary() | {"answers": [{"file": f"answer_{n}.wav"} for n in range(1, answers + 1)]}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "events.jsonl").write_text('{"at_ms": 5, "type": "session.created"}\n')
    for answer in summary["answers"]:
        (folder / answer["file"]).write_bytes(b"RIFF")


@pytest.mark.realtime
def test_what_a_former_talk_saved_is_gone_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    assert prepare(folder) == []
    saved(folder, answers=3)
    (folder / "notes.txt").write_text("mine")
    unreached = run_talk("--say", "hello", "--out", str(folder), "--url", "ws://127.0.0.1:9/v1/realtime")
    assert unreached.exit_code == 1
    assert len(list(folder.iterdir())) == 7, "a talk that never began takes nothing away"
    with running(FakeServer(answer_ms=200)) as url:
        assert run_talk("--say", "hello", "--out", str(folder), "--url", url).exit_code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"answer_1.wav", "conversation.wav", "events.jsonl", "summary.json", "notes.txt"}


def test_a_talk_that_was_killed_leaves_its_events_only(tmp_path: Path) -> None:
    for text in ("", '{"at_ms": 5, "type": "session.created"}\n{"at_'):
        (tmp_path / "events.jsonl").write_text(text)
        assert [path.name for path in prepare(tmp_path)] == ["events.jsonl"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("answer_1.wav", "RIFF"),
        ("conversation.wav", "RIFF"),
        ("events.jsonl", "[1]\n"),
        ("events.jsonl", "my notes\n"),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
    ],
)
def test_a_file_that_no_talk_wrote_is_not_touched(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FolderTaken, match=name):
        prepare(tmp_path)
    assert (tmp_path / name).read_text() == text


def test_an_answer_that_the_summary_does_not_name_is_not_touched(tmp_path: Path) -> None:
    saved(tmp_path, answers=1)
    (tmp_path / "answer_2.wav").write_text("mine")
    result = run_talk("--say", "hello", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "answer_2.wav is there, and no talk wrote it" in result.output
    assert len(list(tmp_path.iterdir())) == 5, "all or nothing"
