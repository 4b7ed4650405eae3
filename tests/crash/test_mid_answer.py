"""What becomes of the answer in whose middle the server is killed: what was durable of it is delivered, it ends as
incomplete, and the next answer knows what was heard of it. Real processes, real sockets, the project's own client."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from adapters.bench.own_server import model_flags
from core.session import events as e
from core.session.history import history
from core.session.ledger import heard_text
from gpu_runtime.models.scripted.identity import identify_all
from tests.crash.cluster import INCOMPLETE, Talker, judge, open_cluster
from tests.crash.test_kills import SEED
from tests.store.backends import in_real_time_for

pytestmark = pytest.mark.crash

CHUNKS_BEFORE = 6
HEARD_MS = 350
"""Less than what was told: the listener had not come further."""
LONG = "tell me a long story"
UNITS = 600
"""A minute of it: the kill hits its middle, however slow the listener is."""
STORY = model_flags({"long_units": str(UNITS)})


@in_real_time_for(170)
async def test_the_answer_ends_where_it_was_durable_and_the_next_one_knows_what_was_heard(tmp_path: Path) -> None:
    async with open_cluster(f"sqlite:///{tmp_path}/log.sqlite3", tmp_path, count=1, flags=STORY) as cluster:
        talker = Talker(cluster, random.Random(SEED))
        with trio.fail_after(150):
            async with talker.connected() as client:
                responses = client.responses()
                talker.typed.append(await client.send_text(LONG))
                first = await anext(responses)
                for _ in range(CHUNKS_BEFORE):
                    await anext(first.audio())
                await cluster.kill_and_restart()
                await first.wait_done()
                await client.ack_playback(HEARD_MS, response_id=first.response_id, at_once=True)
                talker.typed.append(await client.send_text("what did you say?"))
                second = await (await anext(responses)).wait_done()
        (replay,) = await judge(cluster.url, [talker])
    assert (first.status, first.reason) == (INCOMPLETE, "runtime_lost")
    outputs = [
        record.event
        for record in replay.records
        if isinstance(record.event, e.Output) and record.event.response_id == first.response_id
    ]
    told = identify_all(b"".join(talker.told.audio[first.response_id or ""]))
    assert CHUNKS_BEFORE <= len(told) == len(outputs) < UNITS, "what was durable was told, all of it, and nothing else"
    kept = replay.state.responses[first.response_id or ""]
    assert kept.text == "".join(output.text for output in outputs)
    assert (kept.committed_ms, kept.produced_ms) == (HEARD_MS, 100 * len(outputs))
    question, answer, *_ = [turn.text for turn in history(replay.state)]
    assert (question, answer) == (LONG, heard_text(kept))
    assert 0 < len(answer) < len(kept.text)
    assert second.status == "completed"
    assert second.transcript.split()[0] == "3", (
        "the model was told of three turns: the question, what was heard, the next"
    )
