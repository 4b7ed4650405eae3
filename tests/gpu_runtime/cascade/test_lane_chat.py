"""A chat model on lanes: the same words as one request over the whole prompt would give, whatever came between."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import pytest

from core.ports.runtime import ModelStatistics
from gpu_runtime.engines.port import EngineLimits, EngineLost
from gpu_runtime.engines.streamed import StreamedLanes
from gpu_runtime.models.cascade.chat_tokenizer import ChatTokenizer
from gpu_runtime.models.cascade.lane_chat import LANES_PER_ANSWER, UNIT_TOKENS, LaneChat, LoopThread
from gpu_runtime.models.cascade.parts import Cancel, Cancelled, ChatMessage, PartFailed, Usage
from gpu_runtime.models.cascade.prompt import PromptBuilder
from gpu_runtime.scheduler.units import Admission
from tests.gpu_runtime.engines.fake import POISON, FakeOptions, FakeRequest, FakeRequests, one_shot

WAIT_S = 20.0
LIMITS = EngineLimits(lane_tokens_max=256, kv_tokens=2_048, block_tokens=16, requests_max=9)


class NumberTokenizer:
    """A token is a number between spaces."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        roles = {"system": "1", "user": "2", "assistant": "3"}
        said = [f"{roles[message['role']]} {message['content']} 4" for message in conversation]
        return " ".join([*said, "3"])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(f"{token} " for token in token_ids)


class Room:
    """A chat model over the fake engine, and what an answer should be."""

    def __init__(self, parallel: int, limits: EngineLimits, step_s: float, stop: tuple[int, ...]) -> None:
        self.tokenizer = NumberTokenizer()
        self.loop = LoopThread()
        self.engine = FakeRequests(FakeOptions(limits=limits, step_s=step_s))
        self.stop = stop

        async def lanes() -> StreamedLanes:
            return StreamedLanes(self.engine)

        self.lanes = self.loop.run(lanes())
        self.chat = LaneChat(self.loop, self.lanes, ChatTokenizer(self.tokenizer), stop, parallel)

    def right(self, messages: list[ChatMessage], max_tokens: int) -> list[int]:
        return one_shot(self.chat._prompt(messages), max_tokens, self.stop)

    def ask(self, messages: list[ChatMessage], max_tokens: int = 40, cancel: Cancel | None = None) -> list[int]:
        """May be called from several threads; ``usage`` is of whoever ended last."""
        said: list[str] = []
        self.usage = self.chat.generate(messages, max_tokens, said.append, cancel or Cancel())
        return [int(word) for word in "".join(said).split()]

    def ask_for_ever(self, messages: list[ChatMessage], cancel: Cancel) -> None:
        """Until it is cancelled: whoever does that may be late, and an answer over by then."""
        while True:
            self.ask(messages, 200, cancel)


@contextmanager
def room(
    parallel: int = 2, limits: EngineLimits = LIMITS, step_s: float = 0.0, stop: tuple[int, ...] = ()
) -> Iterator[Room]:
    made = Room(parallel, limits, step_s, stop)
    yield made
    made.chat.close()


def user(*numbers: int) -> ChatMessage:
    return ChatMessage("user", " ".join(map(str, numbers)))


def assistant(numbers: list[int]) -> ChatMessage:
    return ChatMessage("assistant", " ".join(map(str, numbers)))


SYSTEM = ChatMessage("system", " ".join(map(str, range(100, 120))))


def test_an_answer_in_units_is_what_one_request_gives() -> None:
    with room() as here:
        prompt = [SYSTEM, user(7, 8)]
        answer = here.ask(prompt, 3 * UNIT_TOKENS + 5)
        assert answer == here.right(prompt, 3 * UNIT_TOKENS + 5)
        assert here.usage == Usage(len(here.chat._prompt(prompt)), 3 * UNIT_TOKENS + 5, truncated=True)
        assert here.loop.run(figures(here)).units_done == 4


def test_an_answer_ends_at_its_terminator() -> None:
    prompt = [SYSTEM, user(7, 8)]
    with room() as here:
        long = here.right(prompt, 30)
    with room(stop=(long[20],)) as here:
        assert here.ask(prompt, 60) == long[: long.index(long[20]) + 1]
        assert not here.usage.truncated


def test_the_next_turn_computes_its_new_tokens_only() -> None:
    with room() as here:
        first = [SYSTEM, user(7, 8)]
        answer = here.ask(first)
        before = here.loop.run(figures(here)).tokens_in
        second = [*first, assistant(answer), user(9)]
        assert here.ask(second) == here.right(second, 40)
        after = here.loop.run(figures(here))
        assert after.tokens_in - before == 5  # what ends the answer, the question, and who is next
        assert (after.lanes_open, after.prefix_tokens_asked > 0) == (1, True)


def test_a_cut_answer_goes_on_from_what_was_heard() -> None:
    with room(step_s=0.002) as here:
        first = [SYSTEM, user(7, 8)]
        cancel = Cancel()
        heard: list[str] = []

        def hear(text: str) -> None:
            heard.append(text)
            if len(heard) == 20:
                cancel.cancel()

        with pytest.raises(Cancelled):
            here.chat.generate(first, 60, hear, cancel)
        second = [*first, assistant([int(word) for word in heard[:12]]), user(9)]
        assert here.ask(second) == here.right(second, 40)
        assert here.loop.run(figures(here)).lanes_open == 1


def test_whenever_an_answer_is_stopped_its_asker_is_let_go() -> None:
    """Also before the engine's loop has begun with it."""
    with room(step_s=0.0005) as here:
        for number in range(30):
            cancel = Cancel()
            stopping = threading.Timer(number * 0.0005, cancel.cancel)
            stopping.start()
            with pytest.raises(Cancelled):
                here.ask_for_ever([SYSTEM, user(number)], cancel)
            stopping.join()
        assert here.ask([SYSTEM, user(5)]) == here.right([SYSTEM, user(5)], 40)
        assert here.loop.run(figures(here)).lanes_open <= 2 * LANES_PER_ANSWER


def test_a_listener_that_fails_costs_its_own_answer() -> None:
    def fail(_text: str) -> None:
        raise KeyError("the listener")

    with room(parallel=1) as here:
        for _ in range(2 * LANES_PER_ANSWER):
            with pytest.raises(KeyError):
                here.chat.generate([SYSTEM, user(1)], 40, fail, Cancel())
        assert here.ask([SYSTEM, user(1)]) == here.right([SYSTEM, user(1)], 40)


def test_a_tokenizer_that_trips_costs_one_answer_and_says_so_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trip(_ids: list[int], *, skip_special_tokens: bool) -> str:
        raise OverflowError("a secret")

    with room(parallel=1) as here:
        for _ in range(2 * LANES_PER_ANSWER):
            with monkeypatch.context() as patched:
                patched.setattr(here.tokenizer, "decode", trip)
                with pytest.raises(PartFailed) as caught:
                    here.ask([SYSTEM, user(1)])
            assert (caught.value.code, "secret" in str(caught.value)) == ("model_error", False)
        assert here.ask([SYSTEM, user(1)]) == here.right([SYSTEM, user(1)], 40)
    told = capsys.readouterr().err
    assert "fault of ours: OverflowError | " in told
    assert "secret" not in told


@pytest.mark.parametrize("step", ["apply_chat_template", "encode"])
def test_a_prompt_that_the_tokenizer_or_its_template_refuses_costs_one_answer(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("roles must alternate: a secret")

    with room(parallel=1) as here:
        with monkeypatch.context() as patched:
            patched.setattr(here.tokenizer, step, refuse)
            with pytest.raises(PartFailed) as caught:
                here.ask([SYSTEM, user(1)])
        assert (caught.value.code, "secret" in str(caught.value)) == ("model_error", False)
        assert here.ask([SYSTEM, user(1)]) == here.right([SYSTEM, user(1)], 40)


def test_a_fault_of_ours_is_not_taken_for_the_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_ids: list[int], *, skip_special_tokens: bool) -> str:
        raise AssertionError

    with room(parallel=1) as here:
        monkeypatch.setattr(here.tokenizer, "decode", broken)
        with pytest.raises(AssertionError):
            here.ask([SYSTEM, user(1)])


def test_an_engine_that_trips_over_one_answer_costs_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(_sampling: object) -> None:
        raise KeyError("a secret")

    with room(parallel=1) as here:
        with monkeypatch.context() as patched:
            patched.setattr(FakeRequest, "push", trip)
            with pytest.raises(PartFailed) as caught:
                here.ask([SYSTEM, user(1)])
        assert caught.value.code == "model_error"
        assert here.ask([SYSTEM, user(1)]) == here.right([SYSTEM, user(1)], 40)


def test_a_prompt_that_is_too_long_or_that_the_model_cannot_compute_costs_one_answer() -> None:
    with room() as here:
        with pytest.raises(PartFailed) as caught:
            here.ask([SYSTEM, user(*range(5, 260))])
        assert caught.value.code == "lane_full"
        with pytest.raises(PartFailed) as caught:
            here.ask([SYSTEM, user(POISON)])
        assert caught.value.code == "model_error"
        assert here.ask([SYSTEM, user(7)]) == here.right([SYSTEM, user(7)], 40)


def test_an_answer_never_grows_beyond_its_lane() -> None:
    """A request beyond the model's length takes the engine down."""
    with room() as here:
        prompt = [SYSTEM, user(*range(5, 200))]
        answer = here.ask(prompt, 4_000)
        assert answer == here.right(prompt, LIMITS.lane_tokens_max - len(here.chat._prompt(prompt)) - 1)
        assert here.usage.truncated
        assert here.engine.lost is None


def test_a_conversation_that_goes_on_and_on_slides_and_stays_right() -> None:
    """Whoever builds its prompts believes that everything fits."""
    prompts = PromptBuilder(SYSTEM.content, False, 100_000, 40)
    with room(parallel=1) as here:
        talk: list[ChatMessage] = []
        lengths, kept = [], []
        for turn in range(60):
            talk.append(user(*range(turn, turn + 1 + turn % 9)))
            prompt = prompts.assemble("", talk)
            before = here.loop.run(figures(here)).tokens_in
            answer = here.ask(list(prompt), 24)
            assert answer == here.right(list(prompt), 24)
            lengths.append(len(here.chat._prompt(prompt)))
            kept.append(lengths[-1] - (here.loop.run(figures(here)).tokens_in - before))
            talk.append(assistant(answer))
        assert here.engine.lost is None
        assert max(lengths) <= LIMITS.lane_tokens_max * 7 // 8
        slid = [turn for turn in range(1, 60) if lengths[turn] < lengths[turn - 1]]
        assert 5 <= len(slid) <= 20, "rarely, and many turns at a time"
        assert all(kept[turn] >= lengths[turn - 1] for turn in range(1, 60) if turn not in slid)
        assert here.loop.run(figures(here)).lanes_open == 1
        assert here.loop.run(figures(here)).lanes_slid == len(slid)


def test_conversations_side_by_side_slide_in_their_own_lanes() -> None:
    """All begin with the same words, so that at a slide nothing but what was dropped tells whose is whose. A question that is
    cut, asked again or put to somebody new is no slide."""
    with room(parallel=1) as here:
        talks: list[list[ChatMessage]] = [[SYSTEM], [SYSTEM], [SYSTEM]]
        shortened, lengths = 0, [0, 0, 0]
        for turn in range(30):
            for number, talk in enumerate(talks):
                talk.append(user(number, *range(turn, turn + 9)))
                before, lengths[number] = lengths[number], len(here.chat._prompt(talk))
                shortened += lengths[number] < before
                answer = here.ask(list(talk), 24)
                assert answer == here.right(list(talk), 24)
                here.ask(list(talk), 12)
                talk.append(assistant(answer[: 24 - turn % 3]))
        here.ask([SYSTEM, user(900, 901, 902)], 12)
        assert shortened > 10
        assert here.loop.run(figures(here)).lanes_slid == shortened
        assert here.loop.run(figures(here)).lanes_open == 4


def test_a_turn_that_no_lane_can_hold_is_refused_however_short_the_rest_is() -> None:
    with room(parallel=1) as here:
        long = user(*range(5, 300))
        with pytest.raises(PartFailed) as caught:
            here.ask([SYSTEM, user(1), assistant([2]), long])
        assert caught.value.code == "lane_full"
        assert here.engine.lost is None


def test_many_conversations_at_once_are_all_answered_right() -> None:
    with room(parallel=3, limits=attrs.evolve(LIMITS, requests_max=4), step_s=0.001) as here:
        wrong: list[object] = []

        def converse(number: int) -> None:
            prompt = [SYSTEM, user(number)]
            for turn in range(3):
                answer = here.ask(prompt)
                if answer != here.right(prompt, 40):
                    wrong.append((number, turn))
                prompt = [*prompt, assistant(answer), user(turn + 50)]

        run([lambda number=number: converse(number) for number in (11, 12, 13)])
        assert wrong == []


def test_answers_that_do_not_fit_into_the_memory_together_wait_for_each_other() -> None:
    limits = attrs.evolve(LIMITS, kv_tokens=160)
    with room(parallel=2, limits=limits, step_s=0.002) as here:
        answers: dict[int, list[int]] = {}

        def one(number: int) -> None:
            answers[number] = here.ask([SYSTEM, user(number)], 80)

        run([lambda number=number: one(number) for number in (21, 22)])
        assert answers == {number: here.right([SYSTEM, user(number)], 80) for number in (21, 22)}
        figure = here.loop.run(figures(here))
        assert figure.lanes_parked == 1
        assert figure.kv_used <= 1


def test_an_answer_that_can_never_fit_into_the_memory_is_refused() -> None:
    with room(limits=attrs.evolve(LIMITS, kv_tokens=96)) as here:
        with pytest.raises(PartFailed) as caught:
            here.ask([SYSTEM, user(1)], 200)
        assert caught.value.code == Admission.KV_FULL.value
        assert here.ask([SYSTEM, user(1)], 40) == here.right([SYSTEM, user(1)], 40)


def test_a_slow_engine_takes_one_answer_at_a_time_and_refuses_none() -> None:
    with room(parallel=2, step_s=0.25) as here:
        here.chat.measure(lambda _done: None)
        running: list[int] = []

        def one(number: int) -> None:
            here.chat.generate([SYSTEM, user(number)], 2, lambda _text: running.append(units_running(here)), Cancel())

        run([lambda number=number: one(number) for number in (31, 32)])
        assert len(running) == 4
        assert max(running) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_dies_ends_the_answers_and_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    died = thread_deaths(monkeypatch)
    with room(step_s=0.005) as here:

        def die(_text: str) -> None:
            here.loop.run(kill(here))

        with pytest.raises(EngineLost):
            here.chat.generate([SYSTEM, user(1)], 40, die, Cancel())
        assert died.wait(WAIT_S)


def test_who_waits_for_an_answer_of_a_silent_engine_is_let_go_when_that_is_closed() -> None:
    with room() as here:
        here.ask([SYSTEM, user(1)])
        here.engine.silent.update(name.partition("/")[0] for name in here.engine.open)
        outcomes: queue.Queue[BaseException] = queue.Queue()

        def ask() -> None:
            try:
                here.ask([SYSTEM, user(1)])
            except (EngineLost, Cancelled) as error:
                outcomes.put(error)

        threading.Thread(target=ask, daemon=True).start()
        while not units_running(here):
            time.sleep(0.01)
    assert outcomes.get(timeout=WAIT_S) is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_idle_engine_that_dies_is_noticed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    died = thread_deaths(monkeypatch)
    with room() as here:
        here.ask([SYSTEM, user(1)])
        here.loop.run(kill(here))
        assert died.wait(WAIT_S)


# --- verbs ----------------------------------------------------------------------------------------------------------


async def figures(here: Room) -> ModelStatistics:
    return here.chat.figures()


async def kill(here: Room) -> None:
    here.engine.die("killed")


def units_running(here: Room) -> int:
    return here.lanes.statistics().units_running


def run(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def thread_deaths(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a thread ends with EngineLost, as a worker's own hook would see it."""
    died = threading.Event()
    monkeypatch.setattr(
        threading, "excepthook", lambda args: died.set() if isinstance(args.exc_value, EngineLost) else None
    )
    return died
