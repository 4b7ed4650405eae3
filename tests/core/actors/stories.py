"""Stories about real sessions: servers that share a database, a runtime each, and a client. Verbs do things; ``settle``
lets everything come to rest without faults and checks each promise against the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import numpy as np
import trio

from core.actors.session import Ports, Session, Watch
from core.actors.supervisor import Supervisor, open_supervisor
from core.ports.store import Body, Row, Store
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply, fold
from core.session.config import SessionConfig
from core.session.digest import CHAIN_START, NOTHING_CAUSED, body_digest, caused_digest, chain_link
from core.session.history import history
from core.session.react import effects_of
from core.session.state import Phase, SessionState
from gpu_runtime.host.inline import InlineRuntime, open_inline
from gpu_runtime.models.scripted import machine
from store.memory import NO_FAULT, Fault, MemoryDatabase, open_memory_store
from store.planning import AppendBatch, Request
from tests.core.actors.model_client import BrokenPromise, Client, Link
from tests.core.actors.sqlite_database import SqliteDatabase
from tests.core.plain_projection import PlainProjection

RATE = 24_000
START_NS = 1_700_000_000_000_000_000
PUSH_TO_TALK = SessionConfig(turn_detection=None)
OPEN_MICROPHONE = SessionConfig()
SETTLE_S = 120.0


def tone(ms: int) -> bytes:
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(RATE * ms // 1000) / RATE)
    return (wave * 32_767).astype("<i2").tobytes()


LOUD = tone(100)
QUIET = bytes(len(LOUD))


def encode(caused: object) -> bytes:
    return repr(caused).encode()


@attrs.define(eq=False)
class Server:
    """One server process. ``faults``: what befalls its next appends, in order."""

    name: str
    story: Story
    database: MemoryDatabase | SqliteDatabase
    supervisor: Supervisor = attrs.field(init=False)
    runtime: InlineRuntime = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    up: bool = False
    faults: list[Fault] = attrs.field(factory=list)
    slow_s: float = 0.0
    cut_off: bool = False
    """Nothing that it asks for is written any more."""

    def policy(self, request: Request) -> Fault:
        if self.cut_off:
            return Fault(fail_before=True)
        if isinstance(request, AppendBatch) and self.faults:
            return self.faults.pop(0)
        return Fault(before_s=self.slow_s) if self.slow_s else NO_FAULT

    def open_store(self) -> AbstractAsyncContextManager[Store]:
        if isinstance(self.database, SqliteDatabase):
            return self.database.open(self.policy)
        return open_memory_store(self.database, self.policy)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with (
                self.open_store() as store,
                open_inline(lambda: machine(**self.story.model), latency_s=0.001) as self.runtime,
            ):
                ports = Ports(store, self.runtime, self.story.now_ns, encode, Watch())
                async with open_supervisor(
                    ports,
                    server_id=self.name,
                    make_projection=lambda dialect, version: PlainProjection(),
                    make_token=self.story.token,
                    make_id=lambda: "duplex-1",
                ) as self.supervisor:
                    self.up = True
                    task_status.started()
                    await trio.sleep_forever()
        self.up = False


@attrs.define(eq=False)
class Story:
    """See the module. Made by ``open_story``."""

    nursery: trio.Nursery
    config: SessionConfig
    model: dict[str, Any]
    database: MemoryDatabase | SqliteDatabase = attrs.field(factory=MemoryDatabase)
    servers: list[Server] = attrs.field(factory=list)
    client: Client = attrs.field(init=False)
    wall_offset_ns: int = 0
    tokens: int = 0
    told: list[tuple[Any, ...]] = attrs.field(factory=list)

    def now_ns(self) -> int:
        return START_NS + round(trio.current_time() * 1e9) + self.wall_offset_ns

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    # -- verbs: talking ----------------------------------------------------------------------------------------

    def say(self, ms: int = 300, loud: bool = True) -> None:
        """Send audio, all at once."""
        chunk = LOUD if loud else QUIET
        for _ in range(max(1, ms // 100)):
            body = Body(body_digest(chunk), chunk)
            self.client.post(c.AppendAudio(body.digest, len(chunk), len(chunk) // 2), (body,))

    def ask(self, ms: int = 300) -> None:
        """A whole turn that wants an answer."""
        self.say(ms)
        if self.config.turn_detection is None:
            self.client.post(c.CommitInput(True))
        else:
            self.say(500, loud=False)

    def show(self) -> None:
        """A picture, along with a little sound."""
        picture = f"picture {len(self.client.sent)}".encode()
        image, sound = Body(body_digest(picture), picture), Body(body_digest(QUIET), QUIET)
        shown = c.ImageBody(image.digest, len(picture), "image/png")
        command = c.AppendAudio(sound.digest, len(QUIET), len(QUIET) // 2, images=(shown,))
        self.client.post(command, (sound, image))

    def barge_in(self) -> None:
        self.client.post(c.CancelOutput("barge_in", quiet=True))

    def create(self) -> None:
        self.client.post(c.CreateResponse())

    def ack(self, share: float = 1.0) -> None:
        """Report what was played of the newest answer that was heard."""
        if self.client.received_ms:
            response_id = next(reversed(self.client.received_ms))
            played_ms = int(self.client.played_ms(response_id) * share)
            self.client.post(c.AckPlayback(played_ms, response_id=response_id))

    def pause(self) -> None:
        self.client.post(c.Pause())

    def unpause(self) -> None:
        self.client.post(c.Unpause())

    async def wait(self, ms: float) -> None:
        await trio.sleep(ms / 1000)
        self.judge()

    # -- verbs: what goes wrong --------------------------------------------------------------------------------

    def drop_link(self, after_frames: int = 0) -> None:
        self.client.drop(after_frames)

    async def resume(self, server: int = -1) -> bool:
        """The client comes back, by default to the newest server that is up."""
        ups = [one for one in self.servers if one.up]
        if not ups:
            return False
        return await self.client.connect(ups[server % len(ups)])

    async def take_over(self) -> bool:
        """Another server, same database, while the old one lives and knows of nothing."""
        await self.start_server()
        self.client.drop()
        return await self.resume()

    async def move_quietly(self) -> bool:
        """The same, but the old connection stays open: nobody tells the old server."""
        await self.start_server()
        self.client.link = None
        return await self.resume()

    async def start_server(self) -> Server:
        server = Server(f"server-{len(self.servers) + 1}", self, self.database)
        self.servers.append(server)
        await self.nursery.start(server.run)
        return server

    def kill_server(self) -> None:
        """Every server that has the session, at once and without a word."""
        for server in self.servers:
            if server.up:
                server.scope.cancel()
                server.up = False
        if self.client.link is not None:
            self.client.link.drop()

    def kill_runtime(self) -> None:
        for server in self.servers:
            if server.up:
                server.runtime.kill_worker()

    def stall_runtime(self, s: float = 1.0) -> None:
        """It takes nothing and says nothing for so long; beyond the host's patience, that is its death."""
        for server in self.servers:
            if server.up:
                server.runtime.stall_worker(s)

    def fail_append(self, written: bool = False) -> None:
        """The next append fails; ``written``: its batch is in all the same."""
        for server in self.servers:
            server.faults.append(Fault(fail_after=written, fail_before=not written))

    def slow_store(self, ms: float = 20) -> None:
        for server in self.servers:
            server.slow_s = ms / 1000

    def stall_socket(self) -> None:
        link = self.client.link
        if link is not None and link.up and link.stalled is None:
            link.stalled = trio.Event()

    def unstall_socket(self) -> None:
        if self.client.link is not None:
            self.client.link.unstall()

    def step_clock_back(self, s: float = 3_600) -> None:
        self.wall_offset_ns -= round(s * 1e9)

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The live session that the client is at."""
        assert self.client.link is not None
        assert self.client.link.session is not None
        return self.client.link.session

    def records(self) -> tuple[e.Record, ...]:
        return self.database.records("duplex-1")

    def events(self, kind: type[Any]) -> list[Any]:
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    async def until(self, done: Any, within_s: float = 30.0) -> None:
        with trio.fail_after(within_s):
            while not done():
                await trio.sleep(0.005)
        self.judge()

    async def answering(self) -> str:
        """Wait for the first sound of an answer that has not ended; its id."""

        def playing() -> list[str]:
            return [rid for rid in self.client.received_ms if not self.client.ends[rid]]

        await self.until(playing)
        return playing()[-1]

    def judge(self) -> None:
        if self.client.broken is not None:
            raise self.client.broken

    # -- the end -----------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """No more faults: everything that was started must come to its end, and the client must get all of it."""
        for server in self.servers:
            server.faults.clear()
            server.slow_s = 0.0
        self.unstall_socket()
        if self.client.link is not None:
            self.client.link.drop_after = None
        with trio.move_on_after(SETTLE_S):
            while not self._at_rest():
                if not self.client.connected and not self.client.over:
                    if not any(server.up for server in self.servers):
                        await self.start_server()
                    await self.resume()
                elif self._paused():
                    self.unpause()
                await trio.sleep(0.25)
        self.judge()
        check_owners(self)
        check_log(self)
        if not self.client.over:
            if not self._at_rest():
                raise BrokenPromise("one-end", f"nothing comes to rest: {self._why()}")
            check_stream(self)
            check_input(self)
            check_heard(self)
            check_calls(self)
            if self.session.state != fold(self.records()):
                raise BrokenPromise("replay-is-live", "the live state is not the log's fold")

    def _paused(self) -> bool:
        return self.session.state.phase is Phase.PAUSED

    def _at_rest(self) -> bool:
        if self.client.over:
            return True
        if not self.client.connected:
            return False
        session = self.session
        return (
            not session.ended
            and session.state.phase is Phase.OPEN
            and session.state.runtime_up
            and session.state.active is None
            and not session.state.queued
            and session.outbox.durable == session.state.position
            and self.client.number == session.outbox.head
            and self._last_heeded() in (None, *session.state.event_ids)
        )

    def _last_heeded(self) -> str | None:
        """The client's last command that leaves a trace in the log in any case."""
        for event_id, command, _ in reversed(self.client.sent):
            if not isinstance(command, c.CancelOutput | c.Pause | c.Unpause):
                return event_id
        return None

    def _why(self) -> str:
        if not self.client.connected:
            return f"the client is not connected: {self.client.link}"
        session = self.session
        return (
            f"ended {session.ended} {session.failure}, {session.state.phase}, runtime {session.state.runtime_up}, "
            f"active {session.state.active}, queued {session.state.queued}, durable {session.outbox.durable} of "
            f"{session.state.position}, client at {self.client.number} of {session.outbox.head}, "
            f"last {self.client.sent[-1:]}, {session.state.last_event_id}"
        )


@asynccontextmanager
async def open_story(
    config: SessionConfig = PUSH_TO_TALK,
    *,
    latency_s: float = 0.0,
    settle: bool = True,
    database: MemoryDatabase | SqliteDatabase | None = None,
    **model: Any,
) -> AsyncIterator[Story]:
    """A server, and a client that has just opened a session there. At the end everything settles and is judged."""
    async with trio.open_nursery() as nursery:
        model = {"answer_units": 10, "rtf": 0.5, **model}
        story = Story(nursery, config, model, MemoryDatabase() if database is None else database)
        server = await story.start_server()
        client = story.client = Client(nursery, latency_s=latency_s)
        session = await server.supervisor.open(config, PlainProjection())
        link = client.link = Link(client, server, latency_s)
        client.links.append(link)
        link.session, link.attachment = session, server.supervisor.attachment(link)
        session.attach(link.attachment)
        nursery.start_soon(client._follow, link)
        await story.until(lambda: client.token)
        yield story
        if settle:
            await story.settle()
        nursery.cancel_scope.cancel()


# -- the promises, against the log --------------------------------------------------------------------------------


def check_owners(story: Story) -> None:
    """one-writer, as its owners saw it: the log's head was where they thought, or the term had told them."""
    for link in story.client.links:
        failure = link.session.failure if link.session is not None else None
        if failure is not None and failure.startswith("PositionConflict"):
            raise BrokenPromise("one-writer", f"{link.server.name} wrote beside another: {failure}")


def check_log(story: Story) -> None:
    """isolation (no actor crashed), one-writer, one-end and replay-is-live (state, effects and frames, by the chained
    digest), from the log alone."""
    state, projection, chain, term = SessionState(), PlainProjection(), CHAIN_START, 0
    for batch in story.database.read("duplex-1", 0, 10**6):
        if batch.term < term:
            raise BrokenPromise("one-writer", f"term {batch.term} after {term}")
        term = batch.term
        effects: list[Any] = []
        frames: list[Any] = []
        for record in batch.records:
            apply(state, record)
            frames.extend(projection.fold(record, state))
            effects.extend(effects_of(record, state))
        is_the_stores = batch.batch_id == "created" or batch.batch_id.startswith("term-")
        caused = NOTHING_CAUSED if is_the_stores else caused_digest(encode((tuple(effects), frames)))
        chain = chain_link(chain, batch.batch_id, batch.term, map(Row.line, batch.rows), caused)
        if chain != batch.chain:
            raise BrokenPromise("replay-is-live", f"batch {batch.batch_id} replays as something else")
    for closed in story.events(e.SessionClosed):
        if closed.reason.startswith("internal_error"):
            raise BrokenPromise("isolation", f"the actor crashed: {closed.reason}")
    started = [event.response_id for event in story.events(e.ResponseStarted)]
    ended = [event.response_id for event in story.events(e.ResponseEnded)]
    if len(ended) != len(set(ended)) or not set(ended) <= set(started):
        raise BrokenPromise("one-end", f"{started} ended as {ended}")
    if (state.active is None) != (set(started) == set(ended)):
        raise BrokenPromise("one-end", f"{started} ended as {ended}, {state.active} is active")
    if story.client.over == "session_resume_expired" and set(started) != set(ended):
        raise BrokenPromise("one-end", f"the session is closed, {set(started) - set(ended)} is not")


def check_stream(story: Story) -> None:
    """exactly-once-stream: what the client has is what the log says, whole, but for what was announced as skipped."""
    client, state, projection = story.client, SessionState(), PlainProjection()
    if client.missing:
        raise BrokenPromise("exactly-once-stream", f"{sorted(client.missing)} neither came nor were announced")
    first = min(client.got, default=1)
    for record in story.records():
        apply(state, record)
        for frame in projection.fold(record, state):
            got = client.got.get(frame.number)
            if got is not None and got != frame:
                raise BrokenPromise("exactly-once-stream", f"{got} came, the log has {frame}")
            if got is None and frame.number >= first and frame.number not in client.announced:
                raise BrokenPromise("exactly-once-stream", f"{frame} never came")
    for started in story.events(e.ResponseStarted):
        if client.ends[started.response_id] != 1:
            raise BrokenPromise("one-end", f"{started.response_id} ended {client.ends} times for the client")


def check_input(story: Story) -> None:
    """exactly-once-stream, the other way: the client's input is in the log once, in order."""
    kept = [event.event_id for event in story.events(e.Append) if event.kind == "audio"]
    shown = [event for event in story.events(e.Append) if event.kind == "image"]
    if len(shown) != len({event.digest for event in shown}):
        raise BrokenPromise("exactly-once-stream", f"a picture came in twice: {shown}")
    wanted = [event_id for event_id, command, _ in story.client.sent if isinstance(command, c.AppendAudio)]
    refused = {event.event_id for event in story.events(e.Refused)}
    wanted = [event_id for event_id in wanted if event_id not in refused]
    if kept != wanted:
        raise BrokenPromise("exactly-once-stream", f"input {wanted} came in as {kept}")


def check_calls(story: Story) -> None:
    """calls: the model knows of a function call exactly if the client does."""
    state, projection = SessionState(), PlainProjection()
    calls: dict[str, int] = {}
    for record in story.records():
        apply(state, record)
        for frame in projection.fold(record, state):
            if isinstance(record.event, e.ToolCalled):
                calls[record.event.item_id] = frame.number
    first = min(story.client.got, default=1)
    for item_id, number in calls.items():
        if number >= first and (item_id in state.items) != (number in story.client.got):
            raise BrokenPromise("calls", f"{item_id} at {number}: the client has {number in story.client.got}")


def check_heard(story: Story) -> None:
    """heard-only: the history has no word whose sound the client never got."""
    state = fold(story.records())
    for turn in history(state):
        response = state.response_of_item(turn.item_id)
        if response is None:
            continue
        received_ms = story.client.received_ms.get(response.response_id, 0)
        chars = max([chars for chars, end_ms in response.marks if end_ms <= received_ms], default=0)
        if len(turn.text or "") > chars:
            raise BrokenPromise("heard-only", f"{turn} of {response.response_id}, of which {received_ms} ms came")
