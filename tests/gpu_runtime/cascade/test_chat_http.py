"""The HTTP language model against a small endpoint of our own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from core.session.config import Tool
from gpu_runtime.models.cascade.chat_http import HttpChatModel
from gpu_runtime.models.cascade.parts import (
    CallingModel,
    Cancel,
    Cancelled,
    ChatCall,
    ChatMessage,
    PartFailed,
    Tooling,
    Usage,
)
from gpu_runtime.plugin import ModelUnavailable

HELLO = [ChatMessage("user", "Hello.")]


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


class Endpoint:
    """Answers with ``events``, waiting ``pause_s`` between them; or with ``status`` and ``body``."""

    def __init__(self) -> None:
        self.events: list[Any] = [delta("Hi"), delta(" there."), delta(None, "stop")]
        self.done = True
        self.pause_s = 0.0
        self.status = 200
        self.body = b""
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                body = json.dumps({"data": [{"id": "served-model"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((request, self.headers["Authorization"]))
                self.send_response(endpoint.status)
                self.end_headers()
                if endpoint.status != 200:
                    self.wfile.write(endpoint.body)
                    return
                try:
                    self.wfile.write(b": a comment\n\n")
                    for event in endpoint.events:
                        data = event if isinstance(event, bytes) else json.dumps(event).encode()
                        self.wfile.write(b"data: " + data + b"\n\n")
                        self.wfile.flush()
                        endpoint.closing.wait(endpoint.pause_s)
                    if endpoint.done:
                        self.wfile.write(b"data: [DONE]\n\n")
                except ConnectionError:
                    pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    yield served
    served.close()


def ask(endpoint: Endpoint, cancel: Cancel | None = None) -> tuple[str, Usage]:
    model = HttpChatModel(endpoint.url, "m", None, 1)
    texts: list[str] = []
    usage = model.generate(HELLO, 20, texts.append, Cancel() if cancel is None else cancel)
    return "".join(texts), usage


def test_an_answer_is_streamed(endpoint: Endpoint) -> None:
    endpoint.events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    assert ask(endpoint) == ("Hi there.", Usage(7, 3, False))
    request, authorization = endpoint.requests[0]
    assert request["model"] == "m"
    assert request["messages"] == [{"role": "user", "content": "Hello."}]
    assert (request["stream"], request["max_tokens"], request["temperature"]) == (True, 20, 0)
    assert authorization is None


def test_the_first_listed_model_is_taken_and_the_key_is_sent(endpoint: Endpoint) -> None:
    model = HttpChatModel(endpoint.url, None, "secret", 1)
    model.generate(HELLO, 20, lambda _text: None, Cancel())
    request, authorization = endpoint.requests[0]
    assert request["model"] == "served-model"
    assert authorization == "Bearer secret"


LOOK_UP = Tooling((Tool("look_up", "Looks things up.", '{"type": "object"}'),), "function:look_up")


def called(place: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    part = {"index": place, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]}


def test_functions_are_offered_and_their_calls_put_together(endpoint: Endpoint) -> None:
    endpoint.events = [
        delta("One moment."),
        called(0, "c1", "look_up", '{"a"'),
        called(1, "c2", "look_up", "{}"),
        called(0, None, None, ": 1}"),
        delta(None, "tool_calls"),
    ]
    history = [
        ChatMessage("user", "What is it?"),
        ChatMessage("assistant", "", (ChatCall("c0", "look_up", "{}"),)),
        ChatMessage("tool", "42", call_id="c0"),
    ]
    texts: list[str] = []
    calls: list[ChatCall] = []
    model = HttpChatModel(endpoint.url, "m", None, 1)
    assert isinstance(model, CallingModel)
    model.generate_calling(history, 20, texts.append, Cancel(), LOOK_UP, calls.append)
    assert texts == ["One moment."]
    assert calls == [ChatCall("c1", "look_up", '{"a": 1}'), ChatCall("c2", "look_up", "{}")]
    request, _ = endpoint.requests[0]
    function = {"name": "look_up", "description": "Looks things up.", "parameters": {"type": "object"}}
    assert request["tools"] == [{"type": "function", "function": function}]
    assert request["tool_choice"] == {"type": "function", "function": {"name": "look_up"}}
    asked = {"id": "c0", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    assert request["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "content": "42", "tool_call_id": "c0"},
    ]


@pytest.mark.parametrize(
    "events", [[called(0, "c", "f", "x" * 70_000)], [called(place, "c", "f", "{}") for place in range(65)]]
)
def test_calls_without_end_fail_the_answer(endpoint: Endpoint, events: list[Any]) -> None:
    endpoint.events = [*events, delta(None, "tool_calls")]
    model = HttpChatModel(endpoint.url, "m", None, 1)
    with pytest.raises(PartFailed) as failed:
        model.generate_calling(HELLO, 20, lambda _text: None, Cancel(), LOOK_UP, lambda _call: None)
    assert failed.value.code == "invalid_function_call"


def test_a_limit_is_told(endpoint: Endpoint) -> None:
    endpoint.events = [delta("Hi"), delta(None, "length")]
    assert ask(endpoint) == ("Hi", Usage(0, 1, True))


def test_cancelling_breaks_the_stream_at_once(endpoint: Endpoint) -> None:
    endpoint.pause_s = 50.0
    cancel = Cancel()
    threading.Timer(0.1, cancel.cancel).start()
    started_s = time.monotonic()
    with pytest.raises(Cancelled):
        ask(endpoint, cancel)
    assert time.monotonic() - started_s < 20.0


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(500, b"secret prompt", "model_error"), (400, b'{"error": {"code": "context_length_exceeded"}}', "lane_full")],
)
def test_a_refusal_has_a_code_and_quotes_nothing(endpoint: Endpoint, status: int, body: bytes, code: str) -> None:
    endpoint.status, endpoint.body = status, body
    with pytest.raises(PartFailed) as failed:
        ask(endpoint)
    assert failed.value.code == code
    assert "secret" not in str(failed.value)


ARGUMENTS_AS_AN_OBJECT = {"index": 0, "id": "c", "function": {"name": "f", "arguments": {"a": 1}}}


def test_what_an_endpoint_leaves_open_is_no_fault(endpoint: Endpoint) -> None:
    empty = {"index": None, "id": None, "function": None}
    endpoint.events[:0] = [
        {"choices": None, "usage": None, "error": None},
        {"choices": [{"delta": None}], "usage": {"prompt_tokens": None, "completion_tokens": None}},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}]},
        {"choices": [{"delta": {"tool_calls": [empty]}}]},
    ]
    assert ask(endpoint) == ("Hi there.", Usage(0, 2, False))


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"delta": {"tool_calls": [ARGUMENTS_AS_AN_OBJECT]}}]},
        {"choices": [{"delta": {"tool_calls": ["f"]}}]},
        {"choices": ["Hi"]},
        {"choices": [{"delta": {"content": ["Hi"]}}]},
        {"choices": [], "usage": {"prompt_tokens": [7]}},
        {"choices": 3},
    ],
)
def test_an_event_of_another_shape_costs_one_answer(endpoint: Endpoint, event: Any) -> None:
    """Any other exception would end the worker, and with it everybody's session."""
    endpoint.events.insert(0, event)
    with pytest.raises(PartFailed):
        ask(endpoint)


@pytest.mark.parametrize("events", [[delta("Hi")], [b"{not json"], [b"3"], [{"error": {"message": "no"}}]])
def test_a_broken_stream_is_a_failure(endpoint: Endpoint, events: list[Any]) -> None:
    endpoint.events, endpoint.done = events, False
    with pytest.raises(PartFailed):
        ask(endpoint)


def test_an_endpoint_that_is_not_there() -> None:
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        HttpChatModel("http://127.0.0.1:9/v1", None, None, 1)
    with pytest.raises(PartFailed) as failed:
        HttpChatModel("http://127.0.0.1:9/v1", "m", None, 1).generate(HELLO, 9, lambda _text: None, Cancel())
    assert failed.value.code == "model_unreachable"
