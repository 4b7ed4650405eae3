"""Who gets in, who waits, who is sent away; and that no slot is lost or given twice, whatever is cancelled when."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.server.admission import Admission, Limits, NotAdmitted
from adapters.server.settings import ServerSettings
from adapters.wire.dialect import Waiting
from adapters.wire.openai.projection import OpenAIProjection
from core.actors.supervisor import Draining, SessionsFull
from core.session.config import SessionConfig
from core.session.state import SessionState
from core.session.time_units import NS_PER_S
from tests.server.servers import open_test_server

GA = "/v1/realtime?model=gpt-realtime"
DUPLEX = "/v1/realtime?duplex=1&autostart=0"


def now_ns() -> int:
    return round(trio.current_time() * NS_PER_S)


@attrs.define
class Lodger:
    """Stands in for a session."""

    session_id: str
    state: SessionState


@attrs.define(eq=False)
class House:
    """Stands in for the supervisor: rooms, and openings that take time and may be cancelled."""

    sessions_max: int
    draining: bool = False
    sessions: dict[str, Any] = attrs.field(factory=dict)
    opening: int = 0
    made: int = 0
    most: int = 0
    _moved: trio.Event = attrs.field(factory=trio.Event)

    @property
    def has_room(self) -> bool:
        return not self.draining and len(self.sessions) + self.opening < self.sessions_max

    async def moved(self) -> None:
        """A test that polled instead woke a million times."""
        await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def end(self, session: Any) -> None:
        session.state.at_ns = now_ns()
        del self.sessions[session.session_id]
        self._move()

    async def open(self, takes_s: float) -> Any:
        if not self.has_room:
            raise SessionsFull(self.sessions_max)
        self.opening += 1
        self.most = max(self.most, len(self.sessions) + self.opening)
        try:
            await trio.sleep(takes_s)
            self.made += 1
            session = Lodger(f"s{self.made}", SessionState(opened_ns=now_ns(), at_ns=now_ns()))
            self.sessions[session.session_id] = session
        finally:
            self.opening -= 1
            self._move()
        return session


async def silent(waiting: Waiting) -> None:
    await trio.lowlevel.checkpoint()


_CLIENTS = st.lists(
    st.tuples(
        st.floats(0, 5),  # comes
        st.floats(0.01, 0.5),  # its opening takes
        st.floats(0.1, 4),  # its session lasts
        st.one_of(st.none(), st.floats(0, 4)),  # cancelled so long after it came
        st.sampled_from(["a", "b"]),
    ),
    max_size=14,
)


@settings(max_examples=80)
@given(clients=_CLIENTS, rooms=st.integers(1, 3), queue_max=st.integers(0, 6))
async def test_slots_are_freed_exactly_once_whatever_is_cancelled(
    clients: list[tuple[float, float, float, float | None, str]], rooms: int, queue_max: int
) -> None:
    house = House(rooms)
    admission = Admission(house, Limits(queue_max=queue_max))  # type: ignore[arg-type]
    served = []

    async def client(comes: float, takes: float, lasts: float, patience: float | None, key: str) -> None:
        await trio.sleep(comes)
        with trio.move_on_after(float("inf") if patience is None else patience) as scope:
            try:
                session = await admission.open(key, lambda: house.open(takes), silent)
            except NotAdmitted as refused:
                served.append("refused" if refused.retry_after_ms > 0 else "refused without a hint")
                return
        if scope.cancelled_caught:
            served.append("cancelled")
            return
        served.append("served")
        await trio.sleep(lasts)
        house.end(session)

    async with trio.open_nursery() as nursery:
        for one in clients:
            nursery.start_soon(client, *one)
    assert len(served) == len(clients)
    assert "refused without a hint" not in served
    assert house.most <= rooms
    assert admission.queue_length == 0
    for session in list(
        house.sessions.values()
    ):  # whose client was cancelled in the very instant at which they were there
        house.end(session)
    assert admission.live("a") == admission.live("b") == 0
    for _ in range(rooms):  # every room can be had again
        await admission.open("a", lambda: house.open(0.01), silent)
    assert admission.live("a") == rooms


async def test_the_line_sees_room_that_came_with_a_worker_though_nobody_tells() -> None:
    class Silent(House):
        async def moved(self) -> None:
            await trio.sleep_forever()

    house = Silent(0)
    admission = Admission(house, Limits(queue_max=1))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.open, "a", lambda: house.open(0.01), silent)
        await trio.sleep(5)
        assert not house.made
        house.sessions_max = 1
        await trio.sleep(2)
        assert house.made == 1
        nursery.cancel_scope.cancel()


async def test_the_line_is_first_come_first_served_and_its_estimate_shrinks() -> None:
    house = House(1)
    admission = Admission(house, Limits(queue_max=5))  # type: ignore[arg-type]
    order: list[str] = []
    told: dict[str, list[Waiting]] = {"b": [], "c": []}
    await admission.open("a", lambda: house.open(0.1), silent)

    async def wait(name: str) -> None:
        async def tell(waiting: Waiting) -> None:
            told[name].append(waiting)

        await admission.open(name, lambda: house.open(0.1), tell)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("b", "c"):
            nursery.start_soon(wait, name)
            await trio.sleep(0.01)
        await trio.sleep(10)
        house.sessions.clear()
        await trio.sleep(5)
        house.sessions.clear()
    assert order == ["b", "c"]
    assert [waiting.first for waiting in told["c"]] == [True, *[False] * (len(told["c"]) - 1)]
    assert [waiting.position for waiting in told["c"]][:1] == [2]
    assert told["c"][-1].position == 1
    assert told["c"][-1].wait_s < told["c"][0].wait_s


@pytest.mark.limit(virtual_s=10**6)
async def test_a_session_that_was_over_long_before_anybody_looks_lasted_no_longer_for_that() -> None:
    """The estimate after a quiet night."""
    house = House(1)
    admission = Admission(house, Limits(queue_max=5))  # type: ignore[arg-type]
    told: list[float] = []

    async def tell(waiting: Waiting) -> None:
        told.append(waiting.wait_s)
        raise ConnectionResetError

    for _ in range(20):
        session: Any = await admission.open("a", lambda: house.open(0.0), silent)
        await trio.sleep(30)
        house.end(session)
        await trio.sleep(10 * 3_600)
    await admission.open("a", lambda: house.open(0.0), silent)
    with pytest.raises(ConnectionResetError):
        await admission.open("b", lambda: house.open(0.0), tell)
    assert told == [pytest.approx(30, abs=0.2)]


async def test_a_client_that_leaves_the_line_lets_the_next_one_up() -> None:
    house = House(1)
    admission = Admission(house, Limits(queue_max=5))  # type: ignore[arg-type]
    await admission.open("a", lambda: house.open(0.1), silent)

    async def gone(waiting: Waiting) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await admission.open("b", lambda: house.open(0.1), gone)
    assert admission.queue_length == 0
    with trio.move_on_after(1):
        await admission.open("b", lambda: house.open(0.1), silent)
    assert admission.queue_length == 0


async def test_a_duplex_client_is_told_where_it_stands() -> None:
    config = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=3))
    async with open_test_server(config) as server, server.connect(DUPLEX) as first:
        await first.send("session.update", session={})
        await first.until("session.created")
        async with server.connect(DUPLEX) as second:
            await second.send("session.update", session={})
            queued = await second.receive()
            assert (queued["type"], queued["position"], queued["queue_length"]) == ("session.queued", 1, 1)
            assert queued["estimated_wait_s"] > 0
            assert (await second.receive())["type"] == "session.queue_update"
            await first.send("session.close")
            await second.until("session.created")


async def test_whoever_is_first_gets_in_in_the_instant_at_which_there_is_room() -> None:
    """And the second moves up; a drain sends everybody in the line away. Nobody looks at a clock for it."""
    config = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=3))
    async with open_test_server(config) as server, server.connect(DUPLEX) as first, trio.open_nursery() as nursery:
        supervisor = server.supervisor
        admission = Admission(supervisor, Limits(queue_max=3))
        await first.send("session.update", session={})
        await first.until("session.created")
        got: list[tuple[str, Any]] = []

        async def wait(name: str) -> None:
            try:
                opened: Any = await admission.open(
                    "", lambda: supervisor.open(SessionConfig(), OpenAIProjection()), silent
                )
            except Draining:
                opened = None
            got.append((name, opened))

        for name in "bcd":
            nursery.start_soon(wait, name)
            await trio.sleep(0.01)
        (session,) = supervisor.sessions.values()
        for turn in range(2):
            await trio.sleep(1.234)
            assert len(got) == turn
            session.stop(1012, "away")
            while session.session_id in supervisor.sessions:
                await trio.sleep(0.001)
            await trio.sleep(0.002)
            assert len(got) == turn + 1
            session = got[-1][1]
        nursery.start_soon(supervisor.drain, 5)
        await trio.sleep(0.002)
        assert [(name, opened is None) for name, opened in got] == [("b", False), ("c", False), ("d", True)]


async def test_an_openai_client_waits_without_a_word() -> None:
    config = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=3))
    async with open_test_server(config) as server, server.connect(DUPLEX) as first:
        await first.send("session.update", session={})
        await first.until("session.created")
        async with server.connect(GA) as second:
            with trio.move_on_after(20):
                await second.receive()
            assert second.seen == []
            await first.send("session.close")
            assert (await second.receive())["type"] == "session.created"


async def test_each_key_has_its_own_sessions() -> None:
    config = ServerSettings(model="scripted", api_keys=("sk-a", "sk-b"), limits=Limits(sessions_per_key=1))
    a, b = ((b"Authorization", b"Bearer sk-a"),), ((b"Authorization", b"Bearer sk-b"),)
    async with open_test_server(config) as server, server.connect(GA, headers=a) as first:
        await first.receive()
        async with server.connect(GA, headers=a) as second:
            error = (await second.receive())["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            assert error["retry_after_ms"] > 0
            assert (await second.closed())[0] == 1013
        async with server.connect(GA, headers=b) as other:
            assert (await other.receive())["type"] == "session.created"


async def test_a_session_that_is_being_opened_counts_for_its_key() -> None:
    house = House(5)
    admission = Admission(house, Limits(sessions_per_key=1))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.open, "a", lambda: house.open(1.0), silent)
        await trio.sleep(0.5)
        with pytest.raises(NotAdmitted) as caught:
            await admission.open("a", lambda: house.open(0.1), silent)
        assert caught.value.code == "rate_limit_exceeded"
        await admission.open("b", lambda: house.open(0.1), silent)


async def test_whoever_opens_too_many_a_minute_is_told_when_the_minute_is_over() -> None:
    house = House(5)
    admission = Admission(house, Limits(opens_per_key_per_minute=1))  # type: ignore[arg-type]
    await admission.open("a", lambda: house.open(0.0), silent)
    await trio.sleep(20)
    with pytest.raises(NotAdmitted) as caught:
        await admission.open("a", lambda: house.open(0.0), silent)
    assert caught.value.retry_after_ms == pytest.approx(40_000, abs=10)
    await trio.sleep(caught.value.retry_after_ms / 1000)
    await admission.open("a", lambda: house.open(0.0), silent)


async def test_the_first_in_line_stays_the_first_when_a_resume_takes_the_room() -> None:
    """The room is seen, and is gone when it is asked for: nobody behind may come before."""

    class Taken(House):
        lies = 1

        async def open(self, takes_s: float) -> Any:
            if self.lies and self.sessions_max:
                self.lies -= 1
                raise SessionsFull(self.sessions_max)
            return await super().open(takes_s)

    house = Taken(0)
    admission = Admission(house, Limits(queue_max=5))  # type: ignore[arg-type]
    order: list[str] = []

    async def wait(name: str) -> None:
        await admission.open(name, lambda: house.open(0.01), silent)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            nursery.start_soon(wait, name)
            await trio.sleep(0.1)
        house.sessions_max = 1
        await trio.sleep(5)
        assert order == ["first"]
        nursery.cancel_scope.cancel()


async def test_a_newcomer_does_not_overtake_the_line() -> None:
    """There is room, and the first in line has not come to take it: it is not the newcomer's."""

    class Slow(House):
        async def moved(self) -> None:
            await trio.sleep(0.5)

    house = Slow(0)
    admission = Admission(house, Limits(queue_max=5))  # type: ignore[arg-type]
    order: list[str] = []
    places: dict[str, list[tuple[int, int]]] = {}

    async def wait(name: str) -> None:
        async def tell(waiting: Waiting) -> None:
            places.setdefault(name, []).append((waiting.position, waiting.queue_length))

        await admission.open(name, lambda: house.open(0.01), tell)
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "first")
        await trio.sleep(0.1)
        house.sessions_max = 1
        assert house.has_room
        assert not admission.is_open
        for name in ("second", "third"):
            nursery.start_soon(wait, name)
            await trio.sleep(0.1)
        await trio.sleep(3)
        assert order == ["first"]
        assert [places[name][0] for name in ("first", "second", "third")] == [(1, 1), (2, 2), (3, 3)]
        nursery.cancel_scope.cancel()


async def test_sessions_that_are_over_are_forgotten_though_nobody_asks() -> None:
    house = House(1)
    admission = Admission(house, Limits())  # type: ignore[arg-type]
    for _ in range(50):
        session = await admission.open("a", lambda: house.open(0.0), silent)
        assert len(admission._live) == 1
        del house.sessions[session.session_id]


async def test_the_estimate_learns_from_how_long_sessions_last() -> None:
    async def wait_ms(lasts_s: float) -> int:
        house = House(1)
        admission = Admission(house, Limits())  # type: ignore[arg-type]
        for _ in range(10):
            session = await admission.open("a", lambda: house.open(0.0), silent)
            await trio.sleep(lasts_s)
            house.end(session)
        await admission.open("a", lambda: house.open(0.0), silent)
        with pytest.raises(NotAdmitted) as caught:
            await admission.open("a", lambda: house.open(0.0), silent)
        return caught.value.retry_after_ms

    assert await wait_ms(10.0) < 20_000
    assert await wait_ms(300.0) > 280_000


async def test_a_key_opens_so_many_sessions_a_minute() -> None:
    config = ServerSettings(model="scripted", limits=Limits(opens_per_key_per_minute=2))
    async with open_test_server(config) as server:
        for expected in ("session.created", "session.created", "error"):
            async with server.connect(GA) as client:
                assert (await client.receive())["type"] == expected
        await trio.sleep(61)
        async with server.connect(GA) as client:
            assert (await client.receive())["type"] == "session.created"


async def test_a_key_sends_so_many_events_a_second() -> None:
    config = ServerSettings(model="scripted", limits=Limits(events_per_key_per_s=10))
    async with open_test_server(config) as server, server.connect(GA) as client:
        await client.receive()
        for _ in range(25):
            await client.send("input_audio_buffer.clear")
        codes = [event["error"]["code"] for event in [await client.receive() for _ in range(25)] if "error" in event]
        assert codes == ["rate_limit_exceeded"] * 5
        await trio.sleep(1)
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")


async def test_the_metrics_say_how_the_door_stands() -> None:
    settings = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=1))
    async with open_test_server(settings) as server:

        async def told(is_open: bool, waiting: int) -> None:
            page = (await server.get("/metrics"))[2].decode().splitlines()
            assert f"duologue_admission_open {float(is_open)}" in page
            assert f"duologue_admission_waiting {float(waiting)}" in page

        await told(True, 0)
        async with server.connect(GA) as client:
            await client.receive()
            await told(False, 0)
            async with server.connect(GA):
                await trio.sleep(0.1)
                await told(False, 1)
                async with server.connect(GA) as third:
                    assert (await third.until("error"))["error"]["code"] == "resource_exhausted"
                page = (await server.get("/metrics"))[2].decode()
                assert 'duologue_not_admitted_total{code="resource_exhausted"} 1.0' in page
        await trio.sleep(1)
        await told(True, 0)
