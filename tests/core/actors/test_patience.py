"""Which batches may wait for a later commit, and which may not."""

from __future__ import annotations

import pytest

from core.ports.store import Batch
from core.session import events as e
from store.memory import NO_FAULT, Fault
from store.planning import AppendBatch, Request
from tests.core.actors.stories import PUSH_TO_TALK, Server, open_story


async def batches_of_an_answer(monkeypatch: pytest.MonkeyPatch, rtf: float) -> list[Batch]:
    """All that is written while a question is asked and answered by 10 units of 200 ms."""
    batches: list[Batch] = []

    def note(_server: Server, request: Request) -> Fault:
        if isinstance(request, AppendBatch):
            batches.append(request.batch)
        return NO_FAULT

    monkeypatch.setattr(Server, "policy", note)
    async with open_story(PUSH_TO_TALK, rtf=rtf) as story:
        story.ask()
        response_id = await story.answering()
        await story.until(lambda: story.client.ends[response_id])
    return batches


def of(batches: list[Batch], *kinds: type[e.Event]) -> list[Batch]:
    return [batch for batch in batches if any(isinstance(record.event, kinds) for record in batch.records)]


async def test_output_waits_for_others_once_the_client_has_enough_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = of(await batches_of_an_answer(monkeypatch, rtf=0.1), e.Output)
    assert [batch.patient for batch in outputs[:9]] == [False, False] + [True] * 7


async def test_output_of_a_model_that_is_no_quicker_than_speech_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = of(await batches_of_an_answer(monkeypatch, rtf=1.0), e.Output)
    assert len(outputs) >= 10
    assert not any(batch.patient for batch in outputs)


async def test_input_waits_and_whatever_ends_or_cuts_closes_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = await batches_of_an_answer(monkeypatch, rtf=0.1)
    appends = of(batches, e.Append)
    assert appends
    assert all(batch.patient and not batch.urgent for batch in appends)
    ends = of(batches, e.ResponseEnded, e.Commit)
    assert len(ends) >= 2
    assert all(batch.urgent and not batch.patient for batch in ends)
