"""A chat model's tokenizer: text while tokens come, and what a message costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.models.cascade.chat_tokenizer import TAIL_TOKENS_MAX, ChatTokenizer, TextStream
from gpu_runtime.models.cascade.parts import ChatMessage, PartFailed

SPECIAL = 0


class Pieces:
    """Ids of pieces of bytes, as byte-level tokenizers have them; SPECIAL has no text."""

    def __init__(self) -> None:
        self.known: list[bytes] = [b""]
        self.longest = 0

    def id(self, piece: bytes) -> int:
        self.known.append(piece)
        return len(self.known) - 1

    def text(self, ids: list[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return b"".join(self.known[one] for one in ids).decode(errors="replace")


def told(pieces: Pieces, ids: list[int]) -> list[str]:
    stream = TextStream(pieces.text)
    return [stream.push(one) for one in ids]


@given(st.text(max_size=60), st.lists(st.integers(1, 5), min_size=1), st.lists(st.booleans(), min_size=1))
def test_the_pieces_are_the_text_wherever_letters_are_torn(text: str, sizes: list[int], special: list[bool]) -> None:
    pieces, rest, ids = Pieces(), text.encode("utf-8", "ignore"), []
    place = 0
    while rest:
        size = sizes[place % len(sizes)]
        ids.append(pieces.id(rest[:size]))
        if special[place % len(special)]:
            ids.append(SPECIAL)
        rest, place = rest[size:], place + 1
    said = told(pieces, ids)
    assert "".join(said) == text.encode("utf-8", "ignore").decode()


def test_a_letter_comes_when_it_is_whole() -> None:
    pieces = Pieces()
    ids = [pieces.id(bytes([one])) for one in "aé\U0001f600b".encode()]
    assert told(pieces, ids) == ["a", "", "é", "", "", "", "\U0001f600", "b"]


def test_what_never_becomes_a_letter_is_told_in_the_end_and_holds_nothing_up() -> None:
    pieces = Pieces()
    ids = [pieces.id(b"\xf0") for _ in range(3 * TAIL_TOKENS_MAX)]
    said = told(pieces, [*ids, pieces.id(b"x")])
    assert "".join(said) == "\ufffd" * len(ids) + "x"


def test_an_hour_of_words_is_decoded_a_few_at_a_time() -> None:
    pieces = Pieces()
    words = [f" w{number}" for number in range(5_000)]
    assert told(pieces, [pieces.id(word.encode()) for word in words]) == words
    assert pieces.longest <= 2
    told(pieces, [SPECIAL] * 5_000)
    assert pieces.longest <= 2 * TAIL_TOKENS_MAX


class Words:
    """A token is a word; a template that greets, and puts three tokens around each message."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.encoded = 0

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        if self.failure is not None:
            raise self.failure
        return " ".join(["hi", *(f"< {one['role']} {one['content']} >" for one in conversation), "< assistant"])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.encoded += 1
        return [len(word) for word in text.split()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return ""


def test_a_message_costs_what_it_adds_to_a_prompt_or_little_more() -> None:
    tokenizer = ChatTokenizer(Words())
    talk = [ChatMessage("system", "be kind"), ChatMessage("user", "a b c"), ChatMessage("assistant", "d e")]
    for message in (ChatMessage("user", "f g h i"), ChatMessage("user", "")):
        added = len(tokenizer.ids([*talk, message])) - len(tokenizer.ids(talk))
        assert added <= tokenizer.tokens(message) <= added + 1


def test_a_message_is_counted_once() -> None:
    words = Words()
    tokenizer = ChatTokenizer(words)
    tokenizer.tokens(ChatMessage("user", "a b c"))
    before = words.encoded
    tokenizer.tokens(ChatMessage("user", "a b c"))
    assert words.encoded == before


class TemplateError(Exception):
    """As jinja2 has one."""


@pytest.mark.parametrize("error", [Exception("a secret"), TypeError("a secret"), TemplateError("a secret")])
def test_what_a_tokenizer_raises_is_one_answers_trouble(error: Exception) -> None:
    tokenizer = ChatTokenizer(Words(error), (TemplateError,))
    with pytest.raises(PartFailed) as caught:
        tokenizer.ids([ChatMessage("user", "x")])
    assert (caught.value.code, "secret" in str(caught.value)) == ("model_error", False)


@pytest.mark.parametrize("error", [TemplateError(), OSError(), MemoryError(), AssertionError()])
def test_anything_else_is_not(error: Exception) -> None:
    with pytest.raises(type(error)):
        ChatTokenizer(Words(error)).ids([ChatMessage("user", "x")])
