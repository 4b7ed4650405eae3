"""Owners: who may write, who must be silent, and what becomes of sessions that nobody owns. Servers in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from core.actors.folding import Folded
from core.actors.housekeeping import EXPIRY_MS, due_without_owner
from core.actors.lease import LEASE_S, Holders
from core.actors.supervisor import Supervisor
from core.actors.tokens import ResumeRefused
from core.ports.store import LogUnreadable, SessionRow, StoreFailed, TakeRecords
from core.session import events as e
from core.session.apply import fold
from core.session.config import SessionConfig
from store.memory import MemoryStore
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story
from tests.core.plain_projection import PlainProjection

MARGIN_MS = 3_000


async def kill(story: Story) -> None:
    """All servers at once, before any of them can write that its client is gone."""
    for server in story.servers:
        server.scope.cancel()
        server.up = False
    await trio.sleep(0.001)
    story.client.drop()
    assert not story.events(e.Detached)


def owners(story: Story) -> list[str]:
    return [event.server for event in story.events(e.OwnerChanged)]


async def test_a_live_owner_is_told_and_its_client_goes_on_elsewhere() -> None:
    """The old owner has nothing to append and nothing to write: it is told, and closes its socket with 1012 at once."""
    async with open_story() as story:
        old, link = story.servers[0], story.client.link
        assert link is not None
        assert link.attachment is not None
        await story.wait(500)
        other = await story.start_server()
        await other.supervisor.resume(story.client.session_id, story.client.token, story.client.number)
        with trio.fail_after(0.1):
            await link.attachment.closed.wait()
        assert (link.attachment.close_code, link.attachment.close_reason) == (1012, "resume")
        await story.wait(50)
        assert not old.supervisor.sessions
        await story.resume()
        assert owners(story) == ["server-1", "server-2"]


async def test_a_live_owner_that_is_not_told_finds_out_by_itself() -> None:
    async with open_story() as story:
        old, link = story.servers[0], story.client.link
        assert link is not None
        assert link.attachment is not None
        story.database.tells_terms = False  # like SQLite
        other = await story.start_server()
        await other.supervisor.resume(story.client.session_id, story.client.token, story.client.number)
        with trio.fail_after(1.5):
            await link.attachment.closed.wait()
        assert link.attachment.close_code == 1012
        await story.wait(50)
        assert not old.supervisor.sessions
        await story.resume()


async def test_a_wrong_token_costs_no_fold_no_place_and_nobody_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client that goes on guessing keeps the server busy, and the one with the right token waiting."""
    async with open_story() as story:
        story.drop_link()
        await story.resume()
        await story.until(lambda: story.client.token == "token-2")
        story.say(100)
        await story.until(lambda: story.events(e.TokenConfirmed))
        await story.wait(100)
        await kill(story)
        other = await story.start_server()
        folds: list[str] = []
        scan = MemoryStore.scan

        async def noted(store: MemoryStore, session: str, after: int, upto: int, take: TakeRecords) -> None:
            folds.append(session)
            await scan(store, session, after, upto, take)

        monkeypatch.setattr(MemoryStore, "scan", noted)
        monkeypatch.setattr(Supervisor, "has_room", False)
        for token in ("wrong", "", "token-1"):
            with pytest.raises(ResumeRefused) as refused:
                await other.supervisor.resume(story.client.session_id, token, 0)
            assert refused.value.code == "invalid_resume_token"
        with pytest.raises(ResumeRefused) as refused:
            await other.supervisor.resume("nobody's", "wrong", 0)
        assert refused.value.code == "session_resume_expired"
        assert not folds
        monkeypatch.undo()
        await story.resume()


async def hang_up(story: Story) -> None:
    """The client goes, and its server notices."""
    link = story.client.link
    assert link is not None
    assert link.session is not None
    assert link.attachment is not None
    story.drop_link()
    link.session.detach(link.attachment, "client_gone")
    await story.wait(20)


async def test_a_token_of_the_new_owner_s_opens_the_session_at_the_old_one_that_knows_of_nothing() -> None:
    """A client that is sent to and fro: what the old owner remembers of tokens is no reason to send it away for good."""
    async with open_story() as story:
        old, story.database.tells_terms = story.servers[0], False  # like SQLite
        await hang_up(story)
        await story.start_server()
        await story.resume()
        await story.until(lambda: story.client.token == "token-2")
        story.say(100)
        await story.until(lambda: story.events(e.TokenConfirmed))
        await hang_up(story)
        stale = old.supervisor.sessions[story.client.session_id]
        with pytest.raises(ResumeRefused):
            await old.supervisor.resume(story.client.session_id, "wrong", story.client.number)
        session = await old.supervisor.resume(story.client.session_id, "token-2", story.client.number)
        assert session is not stale
        assert owners(story) == ["server-1", "server-2", "server-1"]


async def test_the_taker_waits_out_the_old_owner_s_second_and_not_more() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        await kill(story)
        other = await story.start_server()
        began, had = trio.current_time(), story.client.number
        await story.client.connect(other)
        await story.until(lambda: story.client.number > had)
        assert LEASE_S <= trio.current_time() - began < LEASE_S + 0.3


def test_who_may_still_write_is_in_the_log() -> None:
    holders = Holders()

    def note(*events: tuple[e.Event, str]) -> list[str]:
        for event, server in events:
            holders.note(event, server)
        return [name for name in "abcd" if holders.others(name)]

    assert note() == []
    assert note((e.Attached(1, ""), "a")) == ["b", "c", "d"]
    assert note((e.OwnerChanged(2, "b"), "b")) == ["b", "c", "d"], "taken, and never let go"
    assert note((e.Attached(2, ""), "b"), (e.Detached(2, 0, ""), "b")) == ["b", "c", "d"], "a may still write"
    assert note((e.Attached(3, ""), "c"), (e.TokenConfirmed(3), "c")) == ["a", "b", "d"], "c has waited a out"
    assert note((e.Attached(4, ""), "c"), (e.Detached(4, 0, ""), "c")) == []


async def test_a_third_server_waits_for_the_first_one_too() -> None:
    """The second took the session and gave it up again within the second that it had to wait itself."""
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        await kill(story)
        await story.client.connect(await story.start_server())
        await story.wait(200)
        await story.servers[-1].supervisor.drain(0)
        third = await story.start_server()
        began, had = trio.current_time(), story.client.number
        await story.client.connect(third)
        await story.until(lambda: story.client.number > had)
        assert trio.current_time() - began >= LEASE_S


async def test_nobody_waits_for_an_owner_that_let_go() -> None:
    """A drained server says so in the log: its client goes on at once."""
    async with open_story() as story:
        story.ask()
        await story.answering()
        await story.servers[0].supervisor.drain(60)
        assert story.events(e.Detached)
        other = await story.start_server()
        began, resumes = trio.current_time(), story.client.resumes
        await story.client.connect(other)
        await story.until(lambda: story.client.resumes > resumes)
        assert trio.current_time() - began < 0.2


async def test_a_paused_server_writes_nothing_when_it_wakes() -> None:
    """The old owner's process was stopped for two seconds while another one took the session; what it holds is stale."""
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        session, link = story.session, story.client.link
        assert link is not None
        session.lease.proved_at -= 2  # its clock says that two seconds have passed since it last had proof
        story.database.tells_terms = False
        other = await story.start_server()
        await other.supervisor.resume(story.client.session_id, story.client.token, story.client.number)
        had = story.client.number
        await trio.sleep(2.5)
        assert story.client.number == had, "a server that had lost its term wrote to its socket"
        assert session.ended
        await story.resume()


async def test_an_idle_session_keeps_its_lease_by_the_survey_alone() -> None:
    async with open_story() as story:
        await story.wait(30_000)
        assert story.session.lease.holds(trio.current_time() + LEASE_S / 4)
        assert len(story.database.watchers) == 1


# --- sessions without an owner --------------------------------------------------------------------------------------


async def test_a_session_that_nobody_comes_back_to_is_ended_by_another_server() -> None:
    """The server dies in mid-answer, another one lives: the answer ends once, the session closes, by itself."""
    async with open_story(settle=False) as story:
        await story.wait(2_000)  # its server has said that it lives
        story.ask()
        await story.answering()
        await kill(story)
        await story.start_server()
        grace_ms = PUSH_TO_TALK.disconnect_grace_ms
        await story.wait(grace_ms)
        assert not story.events(e.SessionClosed), "the grace counts from the loss of the owner"
        await story.wait(EXPIRY_MS + MARGIN_MS)
        (closed,) = story.events(e.SessionClosed)
        assert closed.reason == "disconnect_grace_expired"
        assert len(story.events(e.ResponseEnded)) == len(story.events(e.ResponseStarted)) == 1
        fold(story.records())


async def test_many_servers_end_it_once() -> None:
    async with open_story(settle=False) as story:
        await kill(story)
        for _ in range(4):
            await story.start_server()
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + MARGIN_MS)
        assert len(story.events(e.SessionClosed)) == 1


async def test_a_session_whose_server_said_goodbye_is_ended_without_waiting_for_its_silence() -> None:
    async with open_story(settle=False) as story:
        await story.start_server()
        await story.servers[0].supervisor.drain(1)
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + MARGIN_MS)
        assert [event.reason for event in story.events(e.SessionClosed)] == ["disconnect_grace_expired"]


async def test_a_session_that_its_own_server_lost_is_ended_too() -> None:
    """The actor fell with a failed append, the client never came back, the server lives on."""
    async with open_story(settle=False) as story:
        story.fail_append()
        story.ask()
        await story.wait(100)
        story.client.drop()
        assert not story.servers[0].supervisor.sessions
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + MARGIN_MS)
        assert len(story.events(e.SessionClosed)) == 1


async def test_a_client_that_comes_back_in_time_finds_its_session() -> None:
    async with open_story(attrs.evolve(PUSH_TO_TALK, disconnect_grace_ms=20_000)) as story:
        await story.wait(2_000)  # its server has said that it lives
        await kill(story)
        await story.start_server()
        await story.wait(EXPIRY_MS + 15_000)
        assert await story.resume()
        await story.wait(60_000)
        assert not story.events(e.SessionClosed)


async def comes_back_at_the_last_moment(story: Story, server: int) -> None:
    """The client comes back to a server (0: the one that is about to end its session) just before the session is ended."""
    (sweeper, *_) = [one for one in story.servers if one.up]
    keeper = sweeper.supervisor._housekeeper
    end, ended = keeper.end, []

    async def end_too_late(row: SessionRow, reason: str) -> bool:
        assert await story.resume(server)
        ended.append(await end(row, reason))
        return ended[-1]

    keeper.end = end_too_late
    await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + MARGIN_MS)
    assert ended == [False]
    assert not story.events(e.SessionClosed)
    assert owners(story)[1:] == [story.servers[-1 if server else 1].name]
    story.ask()
    await story.answering()


@pytest.mark.parametrize("server", [0, 1], ids=["to the sweeper", "to another server"])
async def test_a_client_that_comes_back_while_its_session_is_being_swept_finds_it(server: int) -> None:
    async with open_story() as story:
        await story.wait(2_000)  # its server has said that it lives
        await kill(story)
        await story.start_server()
        if server:
            keeper = (await story.start_server()).supervisor._housekeeper
            keeper.end = only_looks_on
        await comes_back_at_the_last_moment(story, server)


async def test_a_session_that_another_server_takes_from_the_sweeper_is_not_ended_under_that_ones_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client comes back to another server when the sweeper has the term, and has not read the log under it."""
    async with open_story() as story:
        await story.wait(2_000)
        await kill(story)
        sweeper, other = await story.start_server(), await story.start_server()
        other.supervisor._housekeeper.end = only_looks_on
        fold_log = sweeper.supervisor._fold
        found: list[int] = []

        async def fold_late(session_id: str) -> Folded | None:
            if owners(story)[-1] == sweeper.name and not found:
                found.append(await story.resume(1))
                await story.wait(1_000)  # long enough for its log to rest
            return await fold_log(session_id)

        monkeypatch.setattr(sweeper.supervisor, "_fold", fold_late)
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + MARGIN_MS)
        assert found == [True]
        assert not story.events(e.SessionClosed)
        assert owners(story)[1:] == [sweeper.name, other.name]
        story.ask()
        await story.answering()


async def only_looks_on(row: SessionRow, reason: str) -> bool:
    return False


async def lose_another_session(story: Story) -> None:
    """Beside the story's own session: "duplex-0", which a sweep comes to first. Their server dies."""
    await story.wait(2_000)
    supervisor = story.servers[0].supervisor
    supervisor._make_id = lambda: "duplex-0"
    await supervisor.open(PUSH_TO_TALK, PlainProjection())
    await kill(story)


@pytest.mark.parametrize("fault", ["a hole", "another version", "no beginning"])
async def test_a_log_that_cannot_be_read_keeps_no_other_session_open(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody owns either session; the one that cannot be read comes first."""
    async with open_story(settle=False) as story:
        await lose_another_session(story)
        await story.start_server()
        scan = MemoryStore.scan

        async def scan_badly(store: MemoryStore, session: str, after: int, upto: int, take: TakeRecords) -> None:
            def take_badly(records: Sequence[e.Record]) -> None:
                take(records[2:] if fault == "no beginning" else [*records[:2], *records[3:]])

            if session == "duplex-0" and fault == "another version":
                raise LogUnreadable("position 1: unknown event type 'sung'")
            await scan(store, session, after, upto, take_badly if session == "duplex-0" else take)

        monkeypatch.setattr(MemoryStore, "scan", scan_badly)
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + MARGIN_MS)
        assert [event.reason for event in story.events(e.SessionClosed)] == ["disconnect_grace_expired"]
        assert caplog.text.count("duplex-0 has no owner, and a log that cannot be read here") == 1


@pytest.mark.parametrize("at", ["its fold", "its end"])
async def test_a_fault_that_one_log_meets_ends_no_server_and_keeps_no_other_session_open(
    at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody owns either session; the one that meets the fault comes first, is left alone, and its log does not grow."""
    async with open_story(settle=False) as story:
        await lose_another_session(story)
        for server in (await story.start_server(), await story.start_server()):
            fold_log, append_close = server.supervisor._fold, server.supervisor._append_close

            async def fold_badly(session_id: str, fold_log: Any = fold_log) -> Folded | None:
                if session_id == "duplex-0" and at == "its fold":
                    raise KeyError("swordfish")
                folded: Folded | None = await fold_log(session_id)
                return folded

            async def append_badly(folded: Folded, reason: str, append_close: Any = append_close) -> None:
                if folded.state.session_id == "duplex-0":
                    raise KeyError("swordfish")
                await append_close(folded, reason)

            monkeypatch.setattr(server.supervisor, "_fold", fold_badly)
            monkeypatch.setattr(server.supervisor, "_append_close", append_badly)
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + MARGIN_MS + 60_000)
        assert [server.up for server in story.servers[1:]] == [True, True]
        assert [event.reason for event in story.events(e.SessionClosed)] == ["disconnect_grace_expired"]
        assert 1 <= caplog.text.count("session duplex-0 has no owner, and ") <= 2, "once for each server"
        assert "swordfish" not in caplog.text
        assert sum(isinstance(r.event, e.OwnerChanged) for r in story.database.records("duplex-0")) <= 2


async def test_the_deadline_of_a_session_without_an_owner() -> None:
    config = SessionConfig(disconnect_grace_ms=5_000)
    async with open_story(config, settle=False) as story:
        await story.wait(10)
        lost_ns = story.now_ns() + 1_000_000_000
        due = due_without_owner(story.session.state, lost_ns)
        assert due is not None
        assert (due.kind, due.at_ns) == ("disconnect_grace_expired", lost_ns + 5_000_000_000)
        story.client.drop()
        await story.wait(200)
        due = due_without_owner(story.session.state, lost_ns + 10**12)
        assert due is not None
        assert due.at_ns < lost_ns + 5_000_000_000, "it was detached before its owner was lost"


@pytest.mark.parametrize("left_out", [1, 10**6])
async def test_a_log_that_lost_its_end_while_it_was_read_is_no_crash(
    left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts a shorter log in the place of this one, between the look at its head and the reading."""
    async with open_story() as story:
        await kill(story)
        other = await story.start_server()
        scan = MemoryStore.scan

        async def less(store: MemoryStore, session: str, after: int, upto: int, take: TakeRecords) -> None:
            await scan(store, session, after, upto - left_out, take)

        monkeypatch.setattr(MemoryStore, "scan", less)
        with pytest.raises(StoreFailed, match="another log"):
            await other.supervisor.resume(story.client.session_id, story.client.token, story.client.number)
        monkeypatch.undo()
        await story.resume()
