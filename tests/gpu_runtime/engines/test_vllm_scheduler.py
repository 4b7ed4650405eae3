"""Requests that go back, on vLLM's own schedulers, with a stand-in for the model: what is kept, computed and given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_runtime.engines.vllm_options import after_boundary, boundary
from tests.gpu_runtime.engines.vllm_stage import BLOCK, BLOCKS, Stage

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=180)]


@pytest.fixture(params=[False, True], ids=["in step", "ahead"])
def stage(request: pytest.FixtureRequest, tiny_model: Path) -> Stage:
    return Stage(tiny_model, request.param)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_cut_ends_the_chunk_at_once_and_the_request_lives(stage: Stage, at_once: bool) -> None:
    from vllm.v1.request import RequestStatus

    stage.push(list(range(50)), 200)
    while len(stage.lane.output_token_ids) < 5:
        stage.step()
    stage.cut(1)
    assert stage.lane.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    assert stage.lane.num_computed_tokens == 54
    if at_once:
        stage.push([7, 8], 4, keep_tokens=54)
    told = [output for _ in range(3) for output in stage.step()]
    if not at_once and not stage.ahead:
        assert not told  # nothing runs, so vLLM comes to no step in which it could tell
        stage.push([7, 8], 4, keep_tokens=54)
        over, *told = stage.step()
        assert over.new_token_ids == []
    elif not at_once:
        assert [output.new_token_ids for output in told] == [[]]
        stage.push([7, 8], 4, keep_tokens=54)
        told = []
    said = [token for output in told for token in output.new_token_ids] + stage.finish()
    assert said[0] == boundary(2)
    assert len(said) == 5
    assert list(stage.lane.all_token_ids)[54:] == [7, 8, *said[1:]]


def test_the_same_cut_again_does_not_touch_the_next_chunk(stage: Stage) -> None:
    stage.push(list(range(50)), 200)
    while len(stage.lane.output_token_ids) < 5:
        stage.step()
    stage.cut(1)
    stage.push([7, 8], 10, keep_tokens=54)
    stage.step()
    stage.cut(1)
    stage.step()
    stage.cut(1)
    while stage.lane.num_output_tokens < 9:
        stage.step()


def test_a_cut_before_the_first_token_lets_the_prompt_be_computed(stage: Stage) -> None:
    stage.push(list(range(50)), 200)
    stage.cut(1)
    stage.push([7, 8], 4, keep_tokens=50)
    said = []
    while boundary(2) not in said:
        said += [token for output in stage.step() for token in output.new_token_ids]
    assert said.index(boundary(2)) == 1
    while stage.lane.num_output_tokens < 4:
        stage.step()
    assert list(stage.lane.all_token_ids)[:52] == [*range(50), 7, 8]


@pytest.mark.parametrize("twice", [False, True])
def test_a_cut_that_comes_before_its_chunk_ends_it_after_its_first_token(stage: Stage, twice: bool) -> None:
    """As vLLM hands over aborts: out of turn, and then in turn."""
    stage.push(list(range(50)), 4)
    stage.finish()
    stage.cut(2)
    stage.push([7, 8], 200, keep_tokens=50)
    if twice:
        stage.cut(2)
    assert len(stage.finish()) == 2, "its boundary, and the token that nobody hears"
    assert list(stage.lane.all_token_ids)[:52] == [*range(50), 7, 8]
    stage.cut(2)
    stage.push([9], 5, keep_tokens=52)
    stage.cut(2)
    number, later = after_boundary(tuple(stage.finish()))
    assert (number, len(later)) == (3, 5)
    assert list(stage.lane.all_token_ids)[:53] == [*range(50), 7, 8, 9]


def test_chunk_after_chunk_is_cut_before_its_first_token_and_each_is_told_by_its_number(stage: Stage) -> None:
    stage.push(list(range(50)), 4)
    stage.finish()
    for number in range(2, 7):
        stage.push([number, number], 200, keep_tokens=50)
        stage.cut(number)
    stage.push([7, 8], 4, keep_tokens=50)
    said: list[int] = []
    while stage.lane.num_output_tokens < 4 or list(stage.lane.all_token_ids)[50:52] != [7, 8]:
        said += [token for output in stage.step() for token in output.new_token_ids]
    assert [-token for token in said if token < 0] == [2, 3, 4, 5, 6, 7]
    number, last = after_boundary(tuple(said))
    assert (number, list(stage.lane.all_token_ids)[52:56]) == (7, list(last)[:4])


@pytest.mark.parametrize("keep", [33, 63, 64, 65, 96, 105])
def test_what_lies_behind_is_given_back_in_whole_blocks(stage: Stage, keep: int) -> None:
    stage.push(list(range(100)), 8)
    said = stage.finish()
    tokens = [*range(100), *said][:keep]
    before = stage.blocks
    hashes = list(stage.lane.block_hashes)
    stage.push([7, 8, 9], 4, keep_tokens=keep)
    first, *later = stage.finish()
    assert first == boundary(2)
    whole = keep // BLOCK
    assert list(stage.lane.all_token_ids) == [*tokens, 7, 8, 9, *later]
    assert stage.lane.num_computed_tokens == keep + 3 + 3
    assert stage.blocks[:whole] == before[:whole]
    assert list(stage.lane.block_hashes)[:whole] == hashes[:whole]
    held = -(-stage.lane.num_tokens // BLOCK)
    free = stage.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert free >= stage.free - held - 1


def test_a_block_that_another_request_found_in_the_cache_is_not_written_again(stage: Stage) -> None:
    stage.push(list(range(100)), 4)
    stage.finish()
    shared = stage.blocks[:3]
    stage.push(list(range(100)), 200, name="other")
    stage.step()
    assert list(stage.scheduler.kv_cache_manager.get_block_ids("other")[0])[:3] == shared
    stage.push([7, 8, 9], 1, keep_tokens=40)
    stage.step()
    assert stage.blocks[0] == shared[0]
    assert stage.blocks[1] not in shared


def test_logits_that_are_no_numbers_end_their_request_only(stage: Stage) -> None:
    stage.push(list(range(50)), 200)
    stage.push(list(range(40)), 200, name="other")
    while len(stage.lane.output_token_ids) < 2:
        stage.step()
    told = stage.step(nans={"lane": 3, "other": 0})
    by_name = {output.request_id: output for output in told}
    assert str(by_name["lane"].finish_reason) == "error"
    assert by_name["lane"].new_token_ids == []
    assert by_name["other"].finish_reason is None
    assert set(stage.scheduler.requests) == {"other"}
    assert [output.request_id for output in stage.step()] == ["other"]


def test_blocks_that_held_what_is_no_number_are_not_used_again(stage: Stage) -> None:
    stage.push(list(range(100)), 2)
    stage.finish()
    stage.push([7, 8, 9], 200)
    while len(stage.lane.output_token_ids) < 2:
        stage.step()
    written = set(stage.blocks[3:])
    stage.step(nans={"lane": 1})
    assert stage.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == stage.free - len(written)
    stage.push([*range(500, 500 + 32 * (BLOCKS - 4))], 2, name="next")
    stage.step()
    assert not written & set(stage.scheduler.kv_cache_manager.get_block_ids("next")[0])


def test_an_engine_that_has_lost_too_many_blocks_ends_itself(stage: Stage) -> None:
    stage.push(list(range(400)), 200)

    def until_it_is_over() -> None:
        for _ in range(5):
            stage.step(nans={"lane": 1})

    with pytest.raises(RuntimeError, match="no number"):
        until_it_is_over()


LONG = list(range(1_000, 1_960))
PIECE = 64
"""VllmOptions.piece_tokens, and vLLM's longest step is of 2,048."""


def test_a_long_prompt_is_computed_beside_those_who_speak_and_holds_none_up(stage: Stage) -> None:
    stage.push(list(range(50)), 200)
    while len(stage.lane.output_token_ids) < 2:
        stage.step()
    stage.scheduled.clear()
    stage.push(LONG, 1, name="long")
    pieces = len(LONG) // PIECE
    for _ in range(pieces + 3):
        stage.step()
    beside = [step for step in stage.scheduled if "long" in step]
    assert [step["long"] for step in beside] == [PIECE] * pieces
    assert all(step.get("lane") == 1 for step in beside), "a token of its own in each of them"


def test_a_unit_that_comes_while_a_long_prompt_is_computed_is_in_the_very_next_step(stage: Stage) -> None:
    stage.scheduler.max_num_scheduled_tokens = 256
    stage.push(LONG, 1, name="long")
    stage.step()
    assert stage.scheduled == [{"long": 256}], "alone, it has all of the step"
    stage.push(list(range(14)), 2)
    for _ in range(12):
        stage.step()
    assert stage.scheduled[1] == {"long": PIECE, "lane": 14}
    prompt = [step for step in stage.scheduled if "long" in step]
    assert sum(step["long"] for step in prompt) == len(LONG)
    assert {step["long"] for step in prompt if "lane" in step} == {PIECE}
    assert max(step["long"] for step in prompt[1:]) == 256, "and again, when nobody speaks any more"


def test_several_long_prompts_and_nobody_who_speaks_have_all_of_the_steps(stage: Stage) -> None:
    for number in range(2):
        stage.push([number, *LONG], 1, name=f"long{number}")
    stage.step()
    assert stage.scheduled == [{"long0": 961, "long1": 961}]


@pytest.mark.parametrize("fresh", [False, True], ids=["in its own request", "by a new request"])
def test_the_first_token_after_a_cut_comes_with_the_first_step_that_is_scheduled_after_it(
    stage: Stage, fresh: bool
) -> None:
    """No order of cut and new chunk can be quicker: what is scheduled already runs, where vLLM is a step ahead."""
    stage.push(list(range(50)), 200)
    while len(stage.lane.output_token_ids) < 5:
        stage.step()
    before = len(stage.scheduled)
    on_their_way = len(stage._running)
    if fresh:
        stage.push([*range(54), 7, 8], 4, name="next")
        stage.cut(1)
    else:
        stage.cut(1)
        stage.push([7, 8], 4, keep_tokens=54)
    name = "next" if fresh else "lane"
    answered = next(
        count
        for count in range(1, 6)
        if any(output.request_id == name and output.new_token_ids for output in stage.step())
    )
    assert stage.scheduled[before].get(name, 0) >= 2, "in the very next step"
    assert answered == 1 + on_their_way
    assert on_their_way == (1 if stage.ahead else 0)
