"""What a request makes of vLLM's answers, with a stand-in for vLLM: nothing is lost, and whatever goes wrong has a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.engines.port import EngineLost, LaneError, Tokens
from gpu_runtime.engines.requests import Piece, Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=180)]

SOON_S = 120.0


class Engine:
    """AsyncLLM as far as a request sees it. ``answer``: what it says to a chunk, one output after another."""

    errored = False

    def __init__(self, answer: Callable[[int], AsyncGenerator[Any, None]]) -> None:
        import torch

        self._answer = answer
        self.output_processor = SimpleNamespace(external_req_ids={})
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(dtype=torch.float32, get_hidden_size=lambda: 8),
            cache_config=SimpleNamespace(num_gpu_blocks=1_000, block_size=32),
        )

    async def generate(self, chunks: AsyncGenerator[Any, None], _params: Any, _name: str) -> AsyncGenerator[Any, None]:
        number = 0
        async for _ in chunks:
            number += 1
            async for output in self._answer(number):
                yield output


def output(*ids: int, finish: str | None = None) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(ids), finish_reason=finish)], num_cached_tokens=0)


def request(engine: Engine) -> Any:
    from gpu_runtime.engines.vllm_options import VllmOptions
    from gpu_runtime.engines.vllm_requests import VllmRequests

    made: Any = engine
    return VllmRequests(made, VllmOptions("nowhere", rewinds=False), []).request("lane")


async def heard(pushed: Any) -> list[int]:
    said: list[int] = []
    async with asyncio.timeout(SOON_S), aclosing(pushed.push([Tokens((1, 2))], Sampling(5))) as pieces:
        async for piece in pieces:
            said.extend(piece.ids)
    return said


def run(story: Callable[[], Any]) -> None:
    asyncio.run(story())


def test_all_of_a_long_answer_waits_for_a_reader_who_comes_late() -> None:
    count = 4_500

    async def answer(_number: int) -> AsyncGenerator[Any, None]:
        for token in range(count):
            yield output()
            yield output(token, finish="length" if token == count - 1 else None)

    async def story() -> None:
        pushed = request(Engine(answer))
        said: list[int] = []
        async with asyncio.timeout(SOON_S), aclosing(pushed.push([Tokens((1,))], Sampling(count))) as pieces:
            async for piece in pieces:
                said.extend(piece.ids)
                if len(said) == 1:
                    await asyncio.sleep(0.5)  # all of it comes meanwhile
        assert said == list(range(count))
        await pushed.close()

    run(story)


def test_more_than_was_asked_for_is_an_error_and_not_a_gap() -> None:
    async def answer(_number: int) -> AsyncGenerator[Any, None]:
        for token in range(50):
            yield output(token)

    async def story() -> None:
        pushed = request(Engine(answer))
        for _ in range(2):
            with pytest.raises(LaneError) as caught:
                await heard(pushed)
            assert caught.value.code == "engine_fault"
        await pushed.close()

    run(story)


@pytest.mark.parametrize("end", ["interrupt", "close", "lose"])
def test_more_than_was_asked_for_is_no_crash_of_whoever_ends_the_chunk_at_that_moment(end: str) -> None:
    """One token too many has come, nobody has read any of it yet, and now the chunk is ended."""

    async def answer(_number: int) -> AsyncGenerator[Any, None]:
        for token in range(6):
            yield output(token)
        await asyncio.sleep(SOON_S)

    async def story() -> None:
        pushed = request(Engine(answer))
        async with asyncio.timeout(SOON_S), aclosing(pushed.push([Tokens((1, 2))], Sampling(5))) as pieces:
            assert (await anext(pieces)).ids == (0,)
            pushed._chunk.tell(Piece((6,), ""))
            assert pushed._chunk.pieces.full()
            if end == "close":
                await pushed.close()
            else:
                pushed.interrupt() if end == "interrupt" else pushed.lose("shut down")
            with pytest.raises(EngineLost if end == "lose" else LaneError, match=r"shut down|more than the 5 tokens"):
                await anext(pieces)
            with pytest.raises(EngineLost if end == "lose" else LaneError):
                await heard(pushed)
        await pushed.close()

    run(story)


@pytest.mark.parametrize("error", [KeyError("a secret"), RuntimeError("a secret"), ZeroDivisionError("a secret")])
def test_what_nobody_foresaw_ends_the_request_at_once_by_a_name_of_its_own(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_number: int) -> AsyncGenerator[Any, None]:
        yield output(7)
        raise error

    async def story() -> None:
        pushed = request(Engine(answer))
        with pytest.raises(LaneError) as caught:
            await heard(pushed)
        assert (caught.value.code, "secret" in str(caught.value)) == ("engine_fault", False)
        with pytest.raises(LaneError) as caught:
            await heard(pushed)
        assert caught.value.code == "engine_fault"
        await pushed.close()

    run(story)
    told = capsys.readouterr().err
    assert f"fault of ours: {type(error).__name__} | " in told
    assert "secret" not in told


def test_a_refused_chunk_keeps_its_name() -> None:
    async def answer(_number: int) -> AsyncGenerator[Any, None]:
        raise ValueError("a prompt of nothing")
        yield

    async def story() -> None:
        pushed = request(Engine(answer))
        with pytest.raises(LaneError) as caught:
            await heard(pushed)
        assert caught.value.code == "model_error"
        await pushed.close()
        await pushed.close()

    run(story)
