"""The language model: any OpenAI-compatible HTTP endpoint (a vLLM server, say), streamed with the standard library."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import attrs
import msgspec

from core.session.config import NAMED_TOOL, Tool
from core.session.state import CALL_BYTES_MAX, CALLS_MAX
from gpu_runtime.models.cascade.parts import (
    Cancel,
    ChatCall,
    ChatMessage,
    OnCall,
    OnText,
    PartFailed,
    Tooling,
    Usage,
)
from gpu_runtime.plugin import ModelUnavailable

TIMEOUT_S = 30.0
"""For connecting, and for each wait for the next line."""

LINE_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 1 << 20
TOO_LONG = ("context_length_exceeded", "maximum context length", "exceed_context_size")
"""How endpoints say that a prompt does not fit."""


class HttpChatModel:
    """A LanguageModel behind ``url`` (``http://host:port/v1``). ``model`` None: the first that the endpoint lists."""

    few_shot = False
    context_tokens = 0

    def __init__(self, url: str, model: str | None, api_key: str | None, parallel: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ModelUnavailable(f"llm=openai:{url} is no http or https URL")
        self.parallel = parallel
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model = model or self._first_model(url)

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        """See LanguageModel."""
        return self._generate(self._request(messages, max_tokens), _Reader(on_text, cancel))

    def generate_calling(
        self,
        messages: Sequence[ChatMessage],
        max_tokens: int,
        on_text: OnText,
        cancel: Cancel,
        tooling: Tooling,
        on_call: OnCall,
    ) -> Usage:
        """See CallingModel."""
        request = self._request(messages, max_tokens)
        request["tools"] = [_tool(tool) for tool in tooling.tools]
        request["tool_choice"] = _choice(tooling.choice)
        reader = _Reader(on_text, cancel)
        usage = self._generate(request, reader)
        for call in reader.calls.values():
            on_call(call)
        return usage

    def _request(self, messages: Sequence[ChatMessage], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [_message(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _generate(self, request: dict[str, Any], reader: _Reader) -> Usage:
        cancel = reader.cancel
        connection = self._connection()
        forget = response = None
        try:
            connection.connect()
            # the connection lets go of its socket when the response is to end with it
            forget = cancel.waking(_breaker(connection.sock))
            cancel.check()
            connection.request("POST", f"{self._base}/chat/completions", json.dumps(request), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refused(response)
            return reader.read(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # a socket that was shut by cancel() fails in one of many ways
            cancel.check()
            raise PartFailed("model_unreachable", f"the language model's endpoint failed: {error}") from error
        finally:
            if forget is not None:
                forget()
            if response is not None:
                response.close()
            connection.close()

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        """Nothing: the endpoint caches as it sees fit, and a request only to warm it would cost its owner."""

    def statistics(self) -> None:
        """See LanguageModel: the endpoint has its own."""

    def close(self) -> None:
        """Nothing is kept open."""

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)

    def _first_model(self, url: str) -> str:
        connection = self._connection()
        try:
            connection.request("GET", f"{self._base}/models", headers=self._headers)
            response = connection.getresponse()
            body = response.read(BODY_BYTES_MAX)
            if response.status != 200:
                raise ModelUnavailable(f"{url}/models answered {response.status}; name the model: llm=openai:URL,MODEL")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise ModelUnavailable(f"the language model's endpoint {url} cannot be reached: {error}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelUnavailable(f"{url}/models lists no model; name it: llm=openai:URL,MODEL") from error
        finally:
            connection.close()


def _breaker(sock: socket.socket) -> Callable[[], None]:
    """Makes whoever reads from ``sock`` stop at once."""

    def shut() -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    return shut


def _refused(response: http.client.HTTPResponse) -> PartFailed:
    body = response.read(BODY_BYTES_MAX).decode("utf-8", "replace")
    code = "lane_full" if any(sign in body for sign in TOO_LONG) else "model_error"
    # the body may quote the prompt: it is not repeated
    return PartFailed(code, f"the language model's endpoint answered {response.status} {response.reason}")


@attrs.frozen
class _Function:
    name: str | None = None
    arguments: str | None = None


@attrs.frozen
class _CallPart:
    """A call comes in pieces: the first has its id and name, all have some of the arguments."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None


@attrs.frozen
class _Delta:
    content: str | None = None
    tool_calls: tuple[_CallPart, ...] | None = None


@attrs.frozen
class _Choice:
    delta: _Delta | None = None
    finish_reason: str | None = None


@attrs.frozen
class _Usage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@attrs.frozen
class _Event:
    """One piece of an answer, as far as it is read here. Endpoints leave fields out, and send null for them."""

    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None
    error: object = None


def _events(response: http.client.HTTPResponse) -> Iterator[_Event]:
    """The server-sent events, up to [DONE]. Raises ValueError for what is none."""
    while line := response.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise ValueError("a line is too long")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            yield msgspec.json.decode(data, type=_Event)
        except msgspec.MsgspecError as error:  # says where it lies, and nothing of what stands there
            raise ValueError(f"an event is not what it should be: {error}") from error


def _message(message: ChatMessage) -> dict[str, Any]:
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        shape["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.call_id:
        shape["tool_call_id"] = message.call_id
    return shape


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}


def _choice(choice: str) -> object:
    if choice.startswith(NAMED_TOOL):
        return {"type": "function", "function": {"name": choice.removeprefix(NAMED_TOOL)}}
    return choice


class _Reader:
    """Reads one answer's stream. ``calls``: those that the model has asked for so far, by their place."""

    def __init__(self, on_text: OnText, cancel: Cancel) -> None:
        self.cancel = cancel
        self.calls: dict[int, ChatCall] = {}
        self._on_text = on_text

    def read(self, response: http.client.HTTPResponse) -> Usage:
        """To the end. Raises PartFailed, Cancelled, ValueError for what is no answer."""
        tokens_in = tokens_out = pieces = 0
        finish = ""
        for event in _events(response):
            self.cancel.check()
            if event.error is not None:
                raise PartFailed("model_error", "the language model's endpoint failed in mid-answer")
            if event.usage is not None:
                tokens_in = event.usage.prompt_tokens or tokens_in
                tokens_out = event.usage.completion_tokens or tokens_out
            for choice in event.choices or ():
                finish = choice.finish_reason or finish
                delta = choice.delta or _Delta()
                for part in delta.tool_calls or ():
                    self._take_call(part)
                if delta.content:
                    pieces += 1
                    self._on_text(delta.content)
        self.cancel.check()
        if not finish:
            raise PartFailed("model_error", "the language model's endpoint broke off in mid-answer")
        return Usage(tokens_in, tokens_out or pieces, finish == "length")

    def _take_call(self, part: _CallPart) -> None:
        place = len(self.calls) if part.index is None else part.index
        function, before = part.function or _Function(), self.calls.get(place, ChatCall("", "", ""))
        call = ChatCall(
            part.id or before.call_id,
            function.name or before.name,
            before.arguments + (function.arguments or ""),
        )
        self.calls[place] = call
        if len(self.calls) > CALLS_MAX or len(call.arguments) > CALL_BYTES_MAX:
            raise PartFailed("invalid_function_call", "the language model asks for more than any client could take")
