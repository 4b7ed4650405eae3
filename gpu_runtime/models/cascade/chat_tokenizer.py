"""A chat model's tokenizer: messages to ids, ids to text while they come, and what a message costs.

The tokenizer is somebody else's code, and its chat template comes with the model's weights. What they trip over is one
answer's trouble (PartFailed), told without a word of what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

from core.ports.described import kind
from gpu_runtime.faults import tell_fault
from gpu_runtime.models.cascade.parts import ChatMessage, PartFailed

TAIL_TOKENS_MAX = 16
"""What is decoded again for each new token: the last word, and what there is of a letter that is not whole. A letter takes
four tokens at most, so a longer wait is for one that never comes."""

COUNTED_MAX = 1_024
"""Messages whose length is remembered: those of a long conversation come again with every turn."""

UNFINISHED = "\ufffd"
"""What a tokenizer gives for bytes that are no letter (yet)."""

FAILURES: tuple[type[Exception], ...] = (ArithmeticError, LookupError, TypeError, ValueError)
"""What Python's part of a tokenizer raises over ids, or text, that it cannot take. Its Rust part raises Exception itself."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer of transformers'."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        """The prompt as text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids to text; a letter that is not whole yet is U+FFFD."""


class ChatTokenizer:
    """``failures``: what its template raises, beside FAILURES. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, failures: tuple[type[Exception], ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._failures = (*FAILURES, *failures)
        self._counted = lru_cache(COUNTED_MAX)(self._count)

    def ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The prompt, up to where the answer begins. Raises PartFailed (model_error)."""
        given = [{"role": message.role, "content": message.content} for message in messages]
        text = self._guarded(
            lambda: self._tokenizer.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        )
        return self._encode(text)

    def tokens(self, message: ChatMessage) -> int:
        """How much longer it makes a prompt, at most. Raises PartFailed (model_error)."""
        return self.around + self._counted(message.content)

    def text(self, ids: list[int]) -> str:
        """Without special tokens. Raises PartFailed (model_error)."""
        return str(self._guarded(lambda: self._tokenizer.decode(ids, skip_special_tokens=True)))

    def stream(self) -> TextStream:
        """For one answer."""
        return TextStream(self.text)

    @cached_property
    def around(self) -> int:
        """What the template puts around a message: measured by two more in the middle of a conversation, since templates do
        special things at both ends. Raises PartFailed (model_error)."""
        talk = [ChatMessage(role, "1") for role in ("system", "user", "assistant", "user", "assistant", "user")]
        return max(0, (len(self.ids(talk)) - len(self.ids(talk[:-2]))) // 2 - self._count("1")) + 1

    def _count(self, content: str) -> int:
        return len(self._encode(content))

    def _encode(self, text: str) -> list[int]:
        return list(self._guarded(lambda: self._tokenizer.encode(text, add_special_tokens=False)))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            if isinstance(error, self._failures) or type(error) is Exception:
                tell_fault(error)
                raise PartFailed("model_error", f"the model's tokenizer failed: {kind(error)}") from error
            raise


class TextStream:
    """Tokens become text as they come. The pieces together are the text of all tokens, but for a letter at the end that is
    not whole."""

    def __init__(self, text_of: Callable[[list[int]], str]) -> None:
        self._text_of = text_of
        self._tail: list[int] = []
        """What the last piece was made of, then what waits."""
        self._told = 0
        """So many of the tail's tokens made the last piece ..."""
        self._told_chars = 0
        """... and have so many letters. They stay: what a token reads may depend on the one before it."""

    def push(self, token: int) -> str:
        """What can be told now that ``token`` came; often nothing."""
        self._tail.append(token)
        text = self._text_of(self._tail)
        unfinished = len(text) <= self._told_chars or text.endswith(UNFINISHED)
        if unfinished and len(self._tail) - self._told < TAIL_TOKENS_MAX:
            return ""
        new = text[self._told_chars :]
        self._tail = self._tail[self._told :]
        self._told = len(self._tail)
        self._told_chars = len(self._text_of(self._tail))
        return new
