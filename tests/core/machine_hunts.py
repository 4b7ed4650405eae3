"""Short stories over the pure machine, each of which one or more mutants break; see hunts.py."""

from __future__ import annotations

import attrs

from core.session import commands as c
from core.session.config import INPUT_KINDS
from tests.core.session.world import CLIENT_VAD, SERVER_VAD, World


async def late_output() -> None:
    world = World()
    world.ask()
    stale = c.ModelOutput(1, world.active.response_id, 0, "speak", "old", "o", 4_800, 24_000, 2_400)
    world.cancel()
    world.ask()
    world.do(stale)


async def cut_and_go_on() -> None:
    world = World()
    world.ask()
    world.make(10)
    world.deliver(frames=len(world.records) - 6 - world.place)
    world.wait(250)
    world.cancel("barge_in")
    world.ask()


async def cut_before_a_call() -> None:
    world = World()
    world.ask()
    stale = c.ModelCall(1, world.active.response_id, "", "look_up", "{}")
    world.call()
    world.cancel()
    world.ask()
    world.do(stale)


async def shown_to_a_new_worker() -> None:
    world = World()
    world.do(c.CreateItem("user", "look", "{}", images=(world.image(),)))
    world.do(c.LoseRuntime("killed"))
    world.do(c.GainRuntime(0, INPUT_KINDS))
    world.do(c.CreateResponse())


async def worker_dies_before_the_transcript() -> None:
    world = World()
    world.ask()
    world.do(c.LoseRuntime("killed"))
    world.say()
    world.do(c.GainRuntime(0, INPUT_KINDS))
    (asked,) = world.state.input.unread
    world.do(c.CommitInput(True))
    world.do(c.TurnHeard(asked, "a question"))
    world.do(c.LoseRuntime("killed again"))
    world.do(c.GainRuntime(0, INPUT_KINDS))


async def turn_ends_within_a_chunk() -> None:
    """The detector finds out late that a turn has ended; what was said since is the next one's."""
    world = World(SERVER_VAD)
    world.say(100)
    world.do(c.SpeechHeard(1, 0))
    world.say(200)
    world.do(c.SpeechFinished(1, 0, 250, None))
    world.say(100)
    world.do(c.LoseRuntime("killed"))
    world.do(c.GainRuntime(0, INPUT_KINDS))
    (turn,) = world.state.input.unread
    world.do(c.TurnHeard(turn, "a question"))
    world.do(c.LoseRuntime("killed again"))
    world.do(c.GainRuntime(0, INPUT_KINDS))


async def late_wish() -> None:
    world = World()
    world.ask()
    world.cancel()
    world.do(c.ModelSpeaks(1))


async def late_detach() -> None:
    world = World()
    world.do(c.Attach("hash-2", 3))
    world.do(c.Detach(1, "gone"))


async def late_end() -> None:
    world = World()
    world.ask()
    stale = c.ModelDone(1, world.active.response_id)
    world.cancel()
    world.ask()
    world.do(stale)


async def late_confirmation() -> None:
    world = World()
    world.do(c.Attach("hash-2", 3))
    world.do(c.ConfirmToken(1))


async def time_turned_back() -> None:
    world = World()
    world.say(500)
    world.do(c.AppendAudio("d", 0, -12_000))


async def bold_ack() -> None:
    world = World()
    world.ask()
    world.make(5)
    world.deliver(frames=2)
    world.ack(10**6)


async def runtime_dies() -> None:
    world = World()
    world.ask()
    world.make(5)
    world.do(c.LoseRuntime("killed"))


async def many_turns() -> None:
    world = World()
    for _ in range(8):
        world.ask()


async def much_input() -> None:
    world = World(attrs.evolve(CLIENT_VAD, max_pending_input_bytes=10_000))
    for _ in range(3):
        world.say(200)


async def long_talk() -> None:
    config = attrs.evolve(
        CLIENT_VAD, window_mode="context", window_high_tokens=90, window_low_tokens=60, window_previous_tokens=20
    )
    world = World(config)
    for _ in range(12):
        world.answered(3)


MACHINE_HUNTS = (
    late_output,
    cut_and_go_on,
    cut_before_a_call,
    shown_to_a_new_worker,
    worker_dies_before_the_transcript,
    turn_ends_within_a_chunk,
    late_wish,
    late_detach,
    late_end,
    late_confirmation,
    time_turned_back,
    bold_ack,
    runtime_dies,
    many_turns,
    much_input,
    long_talk,
)
