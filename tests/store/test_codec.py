"""Records <-> rows: nothing is lost, old versions are read step by step, what cannot be read is said to be so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports.store import LogUnreadable, StoreError
from core.session.config import SessionConfig, TurnDetection
from core.session.events import (
    EVENT_TYPES,
    SCHEMA_VERSIONS,
    ConfigChanged,
    InputCleared,
    InputTranscript,
    Record,
)
from store.codec import UPCASTERS, RecordInvalid, Row, decode_row, encode_record, is_storable
from tests.store.strategies import records, values

GOLDEN = Path(__file__).with_name("golden")


@given(records())
def test_every_record_comes_back(record: Record) -> None:
    assert decode_row(encode_record(record)) == record


@pytest.mark.parametrize("tag", sorted(EVENT_TYPES))
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_every_event_type_is_a_json_object_under_its_tag(tag: str, data: st.DataObject) -> None:
    event = data.draw(values(EVENT_TYPES[tag]))
    row = encode_record(Record(1, 0, 0, event))
    assert (row.type, row.version) == (tag, SCHEMA_VERSIONS[tag])
    assert set(json.loads(row.body)) == {field.name for field in attrs.fields(EVENT_TYPES[tag])}
    assert decode_row(row).event == event


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_cannot_hold_never_gets_into_a_log(bad: float) -> None:
    for config in (SessionConfig(temperature=bad), SessionConfig(turn_detection=TurnDetection(threshold=bad))):
        with pytest.raises(RecordInvalid):
            encode_record(Record(1, 0, 0, ConfigChanged(config)))


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 0, 0, InputCleared()),
        Record(2**63, 0, 0, InputCleared()),
        Record(1, -1, 0, InputCleared()),
        Record(1, 0, 2**63, InputCleared()),
        Record(1, 0, 0, InputTranscript("item", "\ud800")),
    ],
)
def test_what_no_log_can_hold_is_our_fault_and_is_said_at_once(record: Record) -> None:
    with pytest.raises(RecordInvalid):
        encode_record(record)


def test_an_error_says_where_and_never_what_was_said() -> None:
    with pytest.raises(RecordInvalid) as caught:
        encode_record(Record(7, 0, 0, InputTranscript("item", "my secret \ud800")))
    assert "position 7" in str(caught.value)
    assert "secret" not in str(caught.value)


# --- versions -------------------------------------------------------------------------------------------------------


def test_old_versions_are_read_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMA_VERSIONS, "input_transcript", 3)
    upcasters = {
        ("input_transcript", 1): lambda raw: {"item": raw["item"], "words": raw["text"].split()},
        ("input_transcript", 2): lambda raw: {"item_id": raw["item"], "text": " ".join(raw["words"])},
    }
    expected = InputTranscript("item_1", "good day")
    old = {1: {"item": "item_1", "text": "good  day"}, 2: {"item": "item_1", "words": ["good", "day"]}}
    for version, raw in old.items():
        row = Row(4, 2, 9, "input_transcript", version, json.dumps(raw))
        assert decode_row(row, upcasters) == Record(4, 2, 9, expected)
    assert decode_row(encode_record(Record(4, 2, 9, expected)), upcasters).event == expected


def test_every_version_below_the_current_one_has_its_upcaster() -> None:
    steps = {(tag, version) for tag, current in SCHEMA_VERSIONS.items() for version in range(1, current)}
    assert set(UPCASTERS) == steps


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 0, 0, "telepathy", 1, "{}"),
        Row(1, 0, 0, "input_cleared", 2, "{}"),
        Row(1, 0, 0, "input_cleared", 0, "{}"),
        Row(1, 0, 0, "input_transcript", 1, '{"item_id":"a"}'),
        Row(1, 0, 0, "input_transcript", 1, '{"item_id":"a","text":3}'),
        Row(1, 0, 0, "input_transcript", 1, '{"item_id":"a","te'),
    ],
    ids=["unknown tag", "from the future", "no upcaster", "field missing", "wrong type", "torn"],
)
def test_what_cannot_be_read_is_an_error_of_the_store(row: Row) -> None:
    with pytest.raises(LogUnreadable) as caught:
        decode_row(row)
    assert isinstance(caught.value, StoreError)
    assert "position 1" in str(caught.value)


@given(st.text())
def test_storable_is_what_utf8_without_nul_can_hold(text: str) -> None:
    try:
        fits = b"\0" not in text.encode()
    except UnicodeEncodeError:
        fits = False
    assert is_storable(text) == fits


@pytest.mark.parametrize("log", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_logs_of_the_past_are_read_for_ever(log: Path) -> None:
    """Never edit a golden log: a row that no longer reads is somebody's conversation that no longer reads."""
    tags = set()
    for line in log.read_text().splitlines():
        golden = json.loads(line)
        record = decode_row(Row(**{**golden, "body": json.dumps(golden["body"])}))
        assert (record.position, record.epoch, record.at_ns) == (golden["position"], golden["epoch"], golden["at_ns"])
        again = encode_record(record)
        tags.add(again.type)
        if golden["version"] == again.version:
            assert _holds(json.loads(again.body), golden["body"]), "a field lost its value on the way"
    assert len(tags) >= 33


def _holds(now: object, then: object) -> bool:
    """Whether everything that was said then is said now; fields with defaults may have been added."""
    if isinstance(now, dict) and isinstance(then, dict):
        return all(key in now and _holds(now[key], value) for key, value in then.items())
    return now == then
