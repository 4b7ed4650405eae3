"""Clients as pipecat and LiveKit are, by what they raise on and how they interrupt (see the wire's facts): stricter than the
SDKs, and each complaint here once silenced a bot for good."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from tests.server.servers import Client, Server, open_test_server

FORGIVEN = {"response_cancel_not_active", "conversation_already_has_active_response"}
"""Error codes after which pipecat goes on; any other ends its receive loop, but for a retrieve's."""
STATUSES = {"completed", "incomplete", "in_progress"}
RATE = 24_000


@attrs.define
class Strict(Client):
    """Fails where one of them raises, or would go silent. ``received_ms``: audio by item."""

    opened: set[str] = attrs.field(factory=set)
    received_ms: dict[str, int] = attrs.field(factory=dict)
    forgiven: list[str] = attrs.field(factory=list)

    async def receive(self) -> dict[str, Any]:
        event = await Client.receive(self)
        self.judge(event)
        return event

    def judge(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert isinstance(event["event_id"], str), f"{kind}: pipecat raises without an event_id"
        assert self.seen[0]["type"] == "session.created", "it comes first"
        if "session" in event:
            formats = event["session"]["audio"]
            assert formats["input"]["format"]["rate"] == formats["output"]["format"]["rate"] == RATE
            assert {"interrupt_response", "create_response"} <= set(formats["input"]["turn_detection"] or FORGIVEN)
        item = event.get("item")
        if isinstance(item, dict) and "status" in item:
            assert item["status"] in STATUSES, f"{kind}: pipecat raises on {item['status']!r}"
        if kind == "response.output_item.added":
            self.opened.add(event["item"]["id"])
        if kind == "response.output_audio.delta":
            assert event["item_id"] in self.opened, "LiveKit has no channel for it: KeyError"
            ms = len(base64.b64decode(event["delta"])) // 2 * 1_000 // RATE
            self.received_ms[event["item_id"]] = self.received_ms.get(event["item_id"], 0) + ms
        if kind == "error":
            error = event["error"]
            assert isinstance(error, dict), "pipecat raises on a flat error"
            retrieve = str(error["event_id"]).startswith("rci_")
            assert error["code"] in FORGIVEN or retrieve, f"pipecat leaves its loop: {error}"
            self.forgiven.append(error["code"])

    async def ask(self, **response: Any) -> dict[str, Any]:
        """A typed question, and the answer's first audio."""
        await self.question()
        await self.send("response.create", response=response)
        return await self.until("response.output_audio.delta")

    async def question(self) -> None:
        content = [{"type": "input_text", "text": "a long answer please"}]
        await self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})

    async def answers_still(self) -> None:
        """It is not silent: the next question is answered to its end."""
        await self.ask()
        assert (await self.until("response.done"))["response"]["status"] == "completed"


@asynccontextmanager
async def strict(server: Server) -> AsyncIterator[Strict]:
    """Connected and configured in the order of pipecat: nothing is sent before session.created."""
    async with server.connect("/v1/realtime?model=gpt-realtime") as plain:
        client = Strict(plain.socket, plain.rate)
        await client.until("session.created")
        await client.send("session.update", session={"type": "realtime", "instructions": "Be kind."})
        updated = await client.until("session.updated")
        assert updated["session"]["instructions"] == "Be kind."
        yield client


@pytest.mark.parametrize("end_ms", [0, 1, 90, 55_960], ids=["before a word", "1 ms", "in a word", "wall clock"])
@pytest.mark.parametrize("cancels", ["before", "after", "never"])
async def test_an_interruption_by_any_clock_is_no_error_and_silences_nobody(end_ms: int, cancels: str) -> None:
    """Wall clocks run on while nothing is played: "Audio content of 13600ms is already shorter than 55960ms"."""
    async with open_test_server(answer_units=12) as server, strict(server) as client:
        delta = await client.ask()
        truncate = {"item_id": delta["item_id"], "content_index": 0, "audio_end_ms": end_ms}
        if cancels == "before":
            await client.send("response.cancel")
        await client.send("conversation.item.truncate", **truncate)
        if cancels == "after":
            await client.send("response.cancel")
        truncated = await client.until("conversation.item.truncated")
        assert truncated["item_id"] == delta["item_id"]
        assert truncated["audio_end_ms"] <= min(end_ms, client.received_ms[delta["item_id"]] + 1_500)
        while "response.done" not in client.types():
            await client.receive()
        await client.answers_still()
        assert client.forgiven == []


async def test_a_second_truncate_and_one_after_the_end_are_no_errors() -> None:
    async with open_test_server(answer_units=4) as server, strict(server) as client:
        delta = await client.ask()
        await client.until("response.done")
        for end_ms in (500, 9_999_999, 200, 0):
            await client.send(
                "conversation.item.truncate", item_id=delta["item_id"], content_index=0, audio_end_ms=end_ms
            )
        ends = [(await client.until("conversation.item.truncated"))["audio_end_ms"] for _ in range(4)]
        assert ends == sorted(ends, reverse=True), "what was cut is never brought back"
        await client.answers_still()


async def test_a_new_answer_right_behind_a_cancel_is_made() -> None:
    """generate_reply after an interruption: conversation_already_has_active_response elsewhere."""
    async with open_test_server(answer_units=12) as server, strict(server) as client:
        await client.ask()
        await client.send("response.cancel")
        await client.send("response.create", response={"metadata": {"client_event_id": "reply_2"}})
        first = await client.until("response.done")
        assert first["response"]["status"] == "cancelled"
        created = await client.until("response.created")
        assert created["response"]["metadata"]["client_event_id"] == "reply_2"
        done = await client.until("response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (created["response"]["id"], "completed")
        assert done["response"]["metadata"]["client_event_id"] == "reply_2"
        assert client.forgiven == []


async def test_a_cancel_before_the_first_word_leaves_no_answer_that_speaks_later() -> None:
    async with open_test_server(answer_units=12) as server, strict(server) as client:
        await client.question()
        await client.send("response.create")
        await client.send("response.cancel")
        done = await client.until("response.done")
        assert done["response"]["status"] == "cancelled"
        since = len(client.seen)
        with trio.move_on_after(30):
            while True:
                await client.receive()
        assert "response.output_audio.delta" not in client.types()[since:]
        await client.answers_still()


async def test_a_cancel_of_nothing_and_an_answer_too_many_are_forgiven_by_their_codes() -> None:
    async with open_test_server(answer_units=12) as server, strict(server) as client:
        await client.send("response.cancel")
        await client.until("error")
        assert client.seen[-1]["error"]["message"].startswith("Cancellation failed")
        await client.ask()
        await client.send("response.create")
        await client.until("error")
        assert client.forgiven == ["response_cancel_not_active", "conversation_already_has_active_response"]
        await client.until("response.done")
        await client.answers_still()


async def test_a_retrieve_of_nothing_answers_with_the_clients_own_id() -> None:
    async with open_test_server() as server, strict(server) as client:
        await client.send("conversation.item.retrieve", item_id="nope", event_id="rci_nope")
        error = (await client.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("item_retrieve_invalid_item_id", "rci_nope")
        await client.answers_still()


async def test_what_is_spoken_over_the_answer_is_in_order_and_its_items_are_known() -> None:
    async with open_test_server(answer_units=60, transcript="a long question") as server, strict(server) as client:
        await client.say()
        await client.until("response.output_audio.delta")
        await client.say(2_500)
        done = await client.until("response.done")
        details = done["response"]["status_details"]
        assert (done["response"]["status"], details["reason"]) == ("cancelled", "turn_detected")
        speech = [event for event in client.seen if event["type"].startswith("input_audio_buffer.")]
        by_item: dict[str, list[str]] = {}
        for event in speech:
            by_item.setdefault(event["item_id"], []).append(event["type"].rpartition(".")[2])
        assert all(
            kinds == ["speech_started", "speech_stopped", "committed"][: len(kinds)] for kinds in by_item.values()
        )
        await client.until("response.output_audio.delta")  # the question over the answer is answered
