"""Prompts, clauses, units, and what counts as speech."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ports.runtime import HistoryTurn
from gpu_runtime.models.cascade.clauses import PIECE_WORDS_MAX, SECOND_PIECE_WORDS_MAX, ClauseSplitter
from gpu_runtime.models.cascade.judge import spoken_text
from gpu_runtime.models.cascade.parts import SPEAKING_RATE, ChatCall, ChatMessage, Reading, Speech
from gpu_runtime.models.cascade.prompt import EXAMPLES, PERSONA, PromptBuilder, tokens_of
from gpu_runtime.models.cascade.units import UnitCutter


def split(text: str, first_words: int = 6) -> list[str]:
    splitter = ClauseSplitter(first_words)
    return [piece for token in text for piece in splitter.push(token)] + splitter.finish()


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The capital of France is Paris.", ["The capital of France is Paris."]),
        (
            "Well, you boil the water first, then add the tea. Enjoy!",
            ["Well, you boil the water first,", " then add the tea.", " Enjoy!"],
        ),
        (
            "A cat named Luna lived in a small house near the sea.",
            ["A cat named Luna lived in", " a small house near the sea."],
        ),
        ("Dr. Smith is in. Go on.", ["Dr. Smith is in.", " Go on."]),
        ("It costs 3.50 dollars. Yes.", ["It costs 3.50 dollars.", " Yes."]),
        ("Steps:\n1. Boil it.\n2. Drink it.", ["Steps:", "\n1. Boil it.", "\n2. Drink it."]),
        ('She said "no." Then she left.', ['She said "no."', " Then she left."]),
        ("  Hi  ", ["Hi"]),
        ("", []),
    ],
)
def test_pieces_are_clauses(text: str, pieces: list[str]) -> None:
    assert split(text) == pieces


@given(st.text(st.sampled_from("ab,.!?;: \n-'\"1"), max_size=300), st.integers(1, 8))
def test_pieces_are_the_text(text: str, first_words: int) -> None:
    assert "".join(split(text, first_words)) == text.strip()
    assert all(piece.strip() for piece in split(text, first_words))


@given(st.lists(st.sampled_from(["word", "word,", "w"]), max_size=120))
def test_no_piece_is_too_long(words: list[str]) -> None:
    assert all(len(piece.split()) <= PIECE_WORDS_MAX for piece in split(" ".join(words)))


def test_the_first_piece_does_not_wait_for_a_sentence() -> None:
    splitter = ClauseSplitter(4)
    assert splitter.push("one two three four five s") == ["one two three four"]
    assert splitter.push("ix six seven eight nine ten") == []


def test_an_unfinished_end_is_left_out_when_the_model_was_cut_off() -> None:
    splitter = ClauseSplitter(6)
    assert splitter.push("It is blue. And then") == ["It is blue."]
    assert splitter.finish(drop_unfinished=True) == []
    only = ClauseSplitter(6)
    only.push("It is")
    assert only.finish(drop_unfinished=True) == ["It is"]


def speech_of(text: str) -> Speech:
    per_character = SPEAKING_RATE // 37
    ends = [
        at + 1 for at in range(len(text)) if not text[at].isspace() and (at + 1 == len(text) or text[at + 1].isspace())
    ]
    return Speech(np.ones(len(text) * per_character, np.int16), tuple((end, end * per_character) for end in ends))


@given(
    st.lists(st.text(st.sampled_from("abc  "), min_size=1, max_size=60).filter(lambda t: bool(t.strip())), max_size=5)
)
def test_units_add_up_to_what_was_spoken(pieces: list[str]) -> None:
    pieces = [piece.rstrip() for piece in pieces]
    cutter = UnitCutter(320)
    units = [unit for piece in pieces for unit in cutter.cut(piece, speech_of(piece))]
    assert "".join(unit.text for unit in units) == "".join(pieces) == cutter.text
    told, played_ms = 0, 0
    for unit in units:
        assert len(unit.audio) % 48 == 0
        assert len(unit.audio) // 48 <= 320
        end_ms = played_ms + len(unit.audio) // 48
        for mark in unit.marks:
            assert played_ms <= mark.audio_end_ms <= end_ms
            assert mark.chars > told
            told = mark.chars
            heard = cutter.text[: mark.chars]
            assert not heard[-1:].isspace()
            assert cutter.text[mark.chars : mark.chars + 1] in ("", " ") or len(heard) in _ends(pieces)
        played_ms = end_ms
    assert played_ms == cutter.audio_ms


def _ends(pieces: list[str]) -> set[int]:
    ends, at = set(), 0
    for piece in pieces:
        at += len(piece)
        ends.add(at)
    return ends


def test_a_written_piece_has_no_audio() -> None:
    cutter = UnitCutter(320)
    assert cutter.silent("Hello.").text == "Hello."
    assert cutter.silent(" Bye.").audio == b""
    assert cutter.text == "Hello. Bye."


def turn(role: str, text: str | None, item: str = "i") -> HistoryTurn:
    return HistoryTurn(role, text, item)


def test_a_prompt_has_persona_examples_and_turns() -> None:
    builder = PromptBuilder("", True, 2_048, 160)
    prompt = builder.build("", [turn("user", None, "q")], {"q": " Hello? "}.__getitem__)
    assert prompt == (ChatMessage("system", PERSONA), *EXAMPLES, ChatMessage("user", "Hello?"))
    assert PromptBuilder("", False, 0, 160).build("Be brief.", [turn("user", "Hi")], str)[0].content == "Be brief."


def test_empty_turns_are_left_out_and_neighbours_merged() -> None:
    history = [
        turn("user", "One."),
        turn("assistant", ""),
        turn("user", "Two."),
        turn("assistant", "Yes"),
        turn("tool", "3"),
    ]
    prompt = PromptBuilder("p", False, 0, 10).build("", history, str)
    assert [(message.role, message.content) for message in prompt[1:]] == [
        ("user", "One. Two."),
        ("assistant", "Yes"),
        ("user", "3"),
    ]


def test_calls_stand_before_their_results_for_a_model_that_knows_them() -> None:
    history = [
        turn("user", "What is it?"),
        HistoryTurn("assistant", '{"a":1}', "c", name="look_up", call_id="c1"),
        turn("user", "Well?"),
        HistoryTurn("tool", "42", "r", call_id="c1"),
        HistoryTurn("assistant", "{}", "d", name="look_up", call_id="unanswered"),
        HistoryTurn("tool", "7", "s", call_id="unasked"),
    ]
    knowing = PromptBuilder("p", False, 0, 10, calls=True).build("", history, str)
    assert knowing[1:] == (
        ChatMessage("user", "What is it?"),
        ChatMessage("assistant", "", (ChatCall("c1", "look_up", '{"a":1}'),)),
        ChatMessage("tool", "42", call_id="c1"),
        ChatMessage("user", "Well? 7"),
    )
    other = PromptBuilder("p", False, 0, 10).build("", history, str)
    assert other[1:] == (ChatMessage("user", "What is it? Well? 42 7"),)


def test_a_long_history_loses_its_oldest_turns_half_at_a_time() -> None:
    builder = PromptBuilder("", True, 600, 100)
    history: list[HistoryTurn] = []
    beginnings = []
    for number in range(60):
        history.append(turn("user", f"Question number {number}, is it not?"))
        prompt = builder.build("", history, str)
        assert sum(map(tokens_of, prompt)) <= 500
        assert prompt[-1].content == history[-1].text
        assert prompt[: 1 + len(EXAMPLES)] == (ChatMessage("system", PERSONA), *EXAMPLES)
        beginnings.append(prompt[1 + len(EXAMPLES)])
        history.append(turn("assistant", f"Answer {number}, it is."))
    assert len(set(beginnings)) < 12


def test_one_turn_longer_than_the_context_is_kept() -> None:
    prompt = PromptBuilder("p", False, 600, 100).build("", [turn("user", "a"), turn("user", "x" * 9_000)], str)
    assert prompt[-1].content.endswith("x" * 9_000)


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        (Reading("What is the capital of France?", 0.01, 0.98), "What is the capital of France?"),
        (Reading("Who wrote Romeo and Juliet", 0.10, 0.35), "Who wrote Romeo and Juliet"),
        (Reading("You", 0.93, 0.03), ""),
        (Reading("O O O O O O O O O", 0.5, 0.7), ""),
        (Reading("[Music]", 0.1, 0.9), ""),
        (Reading("(coughs) Hello.", 0.1, 0.9), "Hello."),
        (Reading("...", 0.1, 0.9), ""),
        (Reading("Thank you.", 0.1, 0.9), "Thank you."),
        (Reading("Thank you.", 0.3, 0.3), ""),
        (Reading("Mm-hmm.", 0.2, 0.5), "Mm-hmm."),
    ],
)
def test_noise_is_not_read(reading: Reading, text: str) -> None:
    assert spoken_text(reading, 900) == text


def test_more_words_than_could_be_said_are_made_up() -> None:
    assert spoken_text(Reading("one two three four five six", 0.1, 0.9), 128) == ""


def test_a_last_piece_with_one_word_too_many_is_parted() -> None:
    text = " ".join(["word"] * 2 + ["word,"] + ["word"] * (SECOND_PIECE_WORDS_MAX + 1))
    assert [len(piece.split()) for piece in split(text)] == [3, SECOND_PIECE_WORDS_MAX, 1]
    text += " word" * PIECE_WORDS_MAX
    assert [len(piece.split()) for piece in split(text)] == [3, SECOND_PIECE_WORDS_MAX, PIECE_WORDS_MAX, 1]
