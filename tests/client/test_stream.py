"""One stream, whatever the network does: the core against a model of the server, under drops, resumes and takeovers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adapters.client.core import ENDED, GAP, LIVE, ClientCore
from adapters.client.options import CoreOptions
from adapters.wire.schema import names
from tests.client.fake_session import FakeSession

MS = 1_000_000
CHUNK = 480


class StreamMachine(RuleBasedStateMachine):
    """Frames travel one by one; a drop loses all that is under way, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.server = FakeSession()
        self.processes = 0
        self.said: list[bytes] = []
        self.commits = 0
        self.heard: dict[str, list[bytes]] = {}
        self.numbers: list[int] = []
        self.to_server: list[str] = []
        self.core = self.new_process(None)
        self.core.connected(self.now_ns)
        self.settle()

    def new_process(self, credentials: object) -> ClientCore:
        self.processes += 1
        return ClientCore(CoreOptions(heartbeat_ms=None), f"p{self.processes}", credentials)  # type: ignore[arg-type]

    # -- verbs

    def write(self) -> bool:
        frame = self.core.next_frame()
        if frame is not None:
            self.to_server.append(frame)
        return frame is not None

    def deliver_to_server(self) -> bool:
        if self.to_server:
            self.server.receive(self.to_server.pop(0))
            return True
        return False

    def deliver_to_client(self) -> bool:
        if not self.server.frames:
            return False
        for event in self.core.receive(self.server.frames.pop(0), self.now_ns):
            if event.number is not None:
                self.numbers.append(event.number)
            if event.audio:
                self.heard.setdefault(event.payload["response_id"], []).append(event.audio)
        return True

    def settle(self) -> None:
        for _ in range(10_000):
            self.now_ns += 300 * MS
            self.core.tick(self.now_ns)
            if not (self.write() or self.deliver_to_server() or self.deliver_to_client()):
                return
        raise AssertionError("the two never fall silent")

    def drop(self) -> None:
        self.to_server.clear()
        self.server.drop()
        self.core.disconnected(None, "dropped")

    def come_back(self) -> None:
        while self.core.phase == GAP:
            self.core.attempt = 0
            assert self.core.retry_delay_ms(0, 0.5) is not None
            self.core.connected(self.now_ns)

    # -- rules

    @rule(size=st.integers(1, 3))
    def say(self, size: int) -> None:
        chunk = len(self.said).to_bytes(2, "little") * CHUNK * size
        self.said.append(chunk)
        self.core.append_audio(chunk)

    @rule()
    def commit(self) -> None:
        self.commits += 1
        self.core.send({"type": names.AUDIO_COMMIT})

    @rule()
    def barge_in(self) -> None:
        self.core.send({"type": names.BARGE_IN})

    @rule(count=st.integers(1, 6))
    def some_writes(self, count: int) -> None:
        for _ in range(count):
            self.write()

    @rule(count=st.integers(1, 6))
    def some_arrive_at_server(self, count: int) -> None:
        for _ in range(count):
            self.deliver_to_server()

    @rule(count=st.integers(1, 6))
    def some_arrive_at_client(self, count: int) -> None:
        for _ in range(count):
            self.deliver_to_client()

    @rule(count=st.integers(1, 4), pace=st.integers(0, 8))
    def speak(self, count: int, pace: int) -> None:
        if self.server.active is None:
            self.server.start_answer()
        for _ in range(count):
            self.server.delta(self.server.answers.to_bytes(2, "little") * CHUNK, "word ")
        self.server.pump(pace)

    @precondition(lambda self: self.server.active is not None)
    @rule()
    def finish_answer(self) -> None:
        self.server.end_answer()

    @precondition(lambda self: self.server.active is not None)
    @rule()
    def detector_cuts(self) -> None:
        self.server.cut_answer("turn_detected")

    @rule()
    def time_passes(self) -> None:
        self.now_ns += 300 * MS
        self.core.tick(self.now_ns)

    @precondition(lambda self: self.core.phase == LIVE and bool(self.core.responses))
    @rule(mind=st.booleans())
    def report_playback(self, mind: bool) -> None:
        self.core.note_played(10 * self.server.answers, at_once=mind)
        self.core.tick(self.now_ns)
        while self.write():
            pass

    @rule()
    def lose_connection(self) -> None:
        self.drop()
        self.come_back()

    @rule()
    def lose_connection_twice(self) -> None:
        self.drop()
        self.come_back()
        self.write()
        self.deliver_to_server()  # the server has attached, its answer is lost
        self.drop()
        self.come_back()

    @precondition(lambda self: self.core.phase == LIVE and not self.to_server and not self.core.waiting_bytes)
    @rule()
    def another_process_takes_over(self) -> None:
        credentials = self.core.credentials()
        self.to_server.clear()
        self.server.drop()
        self.core = self.new_process(credentials)
        self.core.connected(self.now_ns)
        self.settle()

    # -- promises

    @invariant()
    def alive(self) -> None:
        assert self.core.phase != ENDED, self.core.failure

    @invariant()
    def each_number_once_in_order(self) -> None:
        assert self.numbers == sorted(set(self.numbers))

    def teardown(self) -> None:
        self.lose_connection()
        self.settle()
        self.server.pump(10_000)
        self.settle()
        assert self.core.failure is None
        statistics = self.core.statistics()
        assert statistics.lost_events == 0
        assert statistics.stale_audio_deltas == 0
        assert self.server.repeats == 0
        assert b"".join(self.server.input) == b"".join(self.said)
        assert sum(event["type"] == names.AUDIO_COMMIT for event in self.server.commands) == self.commits
        alive = [frame.number for frame in self.server.numbered if not frame.dead]
        assert set(alive) <= set(self.numbers)
        for response_id, produced in self.server.produced.items():
            heard = self.heard.get(response_id, [])
            if response_id in self.server.cut:
                assert heard == produced[: len(heard)]
            else:
                assert heard == produced


TestStream = StreamMachine.TestCase
TestStream.settings = settings(stateful_step_count=30)
