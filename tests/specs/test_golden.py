"""Golden logs: conversations as servers of the past wrote them. Every run reads and folds all of them, and what they caused
(effects and wire events) must be what was recorded. One that was tampered with must be found out.

Never edit a golden log once a release has written such logs: when this test fails after a change, somebody's sessions
cannot be resumed or replayed any more. Give the event a new schema version with an upcaster (store.codec), or the
projection a new version, and record a new log beside the old one: ``python -m tests.specs.record_golden``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from adapters.archive.reading_lines import read_lines
from adapters.replay.conversation import conversation
from adapters.replay.replaying import Replay, Replayer
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.session.apply import fold
from core.session.state import Phase

GOLDEN = Path(__file__).parents[2] / "specs" / "golden"
LOGS = sorted(GOLDEN.glob("v*_*.jsonl"))


def replay(content: bytes) -> Replay:
    replayer = Replayer(make_projection, encode_caused)
    for batch in read_lines(content):
        replayer.fold(batch)
    return replayer.replay


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_logs_of_the_past_replay_exactly(log: Path) -> None:
    found = replay(log.read_bytes())
    assert found.mismatch is None, found.mismatch
    assert found.state == fold(found.records)
    assert found.state.phase is Phase.CLOSED
    facts = json.loads((GOLDEN / "facts.json").read_text())[log.stem]
    assert facts == facts_of(found)
    assert found.effects_only == (found.batches if log.stem.startswith("v1_") else 0), "checked by the rule of its time"


def facts_of(found: Replay) -> dict[str, object]:
    """What must come out of a golden log for ever: counts, and what every answer came to."""
    answers = [
        [one.status, one.produced_ms, one.played_ms, hashlib.sha256(one.text.encode()).hexdigest()[:16]]
        for one in found.state.responses.values()
    ]
    return {
        "events": len(found.records),
        "batches": found.batches,
        "wire_events": len(found.frames),
        "last_number": found.frames[-1].number,
        "epoch": found.state.epoch,
        "term": found.state.term,
        "answers": answers,
    }


def test_there_is_a_golden_log_of_every_version() -> None:
    assert LOGS
    assert {log.stem for log in LOGS} == set(json.loads((GOLDEN / "facts.json").read_text()))


@pytest.mark.parametrize("name", ["v1_duplex", "v2_duplex"])
def test_a_log_that_was_tampered_with_is_found_out(name: str) -> None:
    content = (GOLDEN / f"{name}.jsonl").read_bytes()
    assert content.count(b'"kind":"speak"') > 1
    lines = content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"kind":"speak"' in line)
    raw = json.loads(lines[place])
    raw["event"]["text"] += " and a word that was never said"
    lines[place] = json.dumps(raw).encode() + b"\n"
    found = replay(b"".join(lines))
    assert found.mismatch is not None
    assert found.mismatch.position <= raw["position"]


@pytest.mark.parametrize(("name", "is_noticed"), [("v1_duplex", False), ("v2_duplex", True)])
def test_a_time_that_nothing_was_made_of(name: str, is_noticed: bool) -> None:
    """What the chain of the first version could not tell, which is why its logs are said to be checked by an older rule."""
    lines = (GOLDEN / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"type":"response_ended"' in line)
    raw = json.loads(lines[place])
    raw["at_ns"] += 1
    lines[place] = json.dumps(raw, separators=(",", ":")).encode() + b"\n"
    found = replay(b"".join(lines))
    assert (found.mismatch is not None) == is_noticed


def test_a_replay_reads_as_a_conversation_with_its_calls_and_pictures() -> None:
    lines = conversation(replay((GOLDEN / "v1_parts.jsonl").read_bytes()))
    assert [
        (line.speaker, line.text, line.notes) for line in lines if line.speaker != "assistant" or "(" in line.text
    ] == [
        ("user", "call=look_up", ("1 picture",)),
        ("assistant", 'look_up({"text": "call=look_up"})', ()),
        ("tool", "it is 42", ()),
        ("user", "and this", ("1 picture",)),
    ]
