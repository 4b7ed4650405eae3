"""Deliberate faults in the product, each by a name: an edit of one of its functions' source. An edit that does not fit any
more is an error, so the list cannot rot.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from typing import Any

import attrs
import pytest


@attrs.frozen
class Edit:
    """``where``: ``module:function`` or ``module:Class.method``."""

    where: str
    old: str
    new: str


@attrs.frozen
class Mutant:
    """``promise`` is what is broken, ``hunt`` the name of the story that shows it (tests/core/hunts.py)."""

    name: str
    promise: str
    hunt: str
    wrong: str
    edits: tuple[Edit, ...]


def switch_on(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the mutant's functions in the place of the product's, wherever they are known."""
    for edit in mutant.edits:
        _apply(edit, monkeypatch)


def _apply(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    module_name, _, path = edit.where.partition(":")
    module = sys.modules[module_name]
    owner: Any = module
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    function = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(edit.old) == 1, f"{edit.where} has no (or no single) {edit.old!r}"
    code = compile(
        source.replace(edit.old, edit.new), f"<mutant of {edit.where}>", "exec", __future__.annotations.compiler_flag
    )
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    if classes:
        monkeypatch.setattr(owner, name, made[name])
    else:
        _replace_everywhere(function, made[name], monkeypatch)


def _replace_everywhere(old: Any, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every module that has imported it, and in every dispatch table."""
    for module_name, module in tuple(sys.modules.items()):
        if not module_name.startswith(("core.", "store.", "tests.core.")):
            continue
        for name, value in tuple(vars(module).items()):
            if value is old:
                monkeypatch.setattr(module, name, new)
            elif type(value) is dict:
                for key, entry in tuple(value.items()):
                    if entry is old:
                        monkeypatch.setitem(value, key, new)


OUTPUT = "core.session.decisions.output"
CUT = "core.session.decisions.cut"
OUTBOX = "core.actors.outbox:Outbox"

MUTANTS: tuple[Mutant, ...] = (
    # -- the first fence: the epoch, where output comes in
    Mutant(
        "late_output_taken",
        "no-stale-audio",
        "late_output",
        "model output of a lane that is over becomes an event",
        (
            Edit(
                f"{OUTPUT}:model_output",
                "if active is None or command.epoch != state.epoch or command.response_id != active.response_id:",
                "if active is None:",
            ),
        ),
    ),
    Mutant(
        "epoch_not_bumped",
        "conservation",
        "cut_and_go_on",
        "a cut leaves the epoch as it is",
        (Edit(f"{CUT}:cut", "state.epoch + 1", "state.epoch"),),
    ),
    # -- the same fence, where frames go out
    Mutant(
        "write_fence_gone",
        "exactly-once-stream",
        "cut_behind_a_stalled_socket",
        "frames of an answer that was cut are written",
        (Edit(f"{OUTBOX}._settle", "False if frame.kind == LIVE else", "False if frame else"),),
    ),
    Mutant(
        "purge_after_an_await",
        "exactly-once-stream",
        "cut_while_audio_is_read",
        "a chunk that the sender holds while it reads the audio is not looked at again",
        (
            Edit(
                "core.actors.attachment:_write_stream",
                "if outbox.peek(attachment.generation) is not item or _over(session, attachment):",
                "if _over(session, attachment):",
            ),
        ),
    ),
    Mutant(
        "writes_before_the_cut_is_durable",
        "exactly-once-stream",
        "cut_that_is_lost",
        "the sender goes on between a cut and its durability",
        (
            Edit(
                f"{OUTBOX}.peek",
                "generation != self.generation or self.fence > self.durable",
                "generation != self.generation",
            ),
        ),
    ),
    Mutant(
        "writes_before_durable",
        "durable",
        "slow_store",
        "frames are written before their record is safe",
        (Edit(f"{OUTBOX}.peek", "entry if entry.frame.position <= self.durable else None", "entry"),),
    ),
    # -- the second fence: the generation
    Mutant(
        "old_socket_reads_on",
        "exactly-once-stream",
        "a_second_socket",
        "a socket that was replaced takes frames that are the new one's",
        (
            Edit(
                f"{OUTBOX}.peek",
                "generation != self.generation or self.fence > self.durable",
                "self.fence > self.durable",
            ),
            Edit("core.actors.door:Door._replace", 'old.halt(1000, "session_replaced")', "pass"),
        ),
    ),
    Mutant(
        "detach_of_an_older_generation",
        "fences",
        "late_detach",
        "the end of a replaced attachment is taken for the present one's",
        (
            Edit(
                "core.session.decisions.link:detach",
                "not link.attached or link.generation != command.generation",
                "not link.attached",
            ),
        ),
    ),
    Mutant(
        "old_token_accepted",
        "fences",
        "stolen_token",
        "the older token still opens the session after the new one has arrived",
        (
            Edit("core.actors.supervisor:check_token", "if not link.confirmed and link", "if link"),
            Edit("core.session.apply:_token_confirmed", 'state.attachment.previous_token_hash = ""', "pass"),
        ),
    ),
    Mutant(
        "no_second_chance_for_a_token",
        "exactly-once-stream",
        "lost_resume_answers",
        "a token is dead as soon as it was shown, though the new one may never arrive",
        (Edit("core.session.apply:_attached", "link.confirmed = event.resumed_from is None", "link.confirmed = True"),),
    ),
    Mutant(
        "second_chance_only_once",
        "exactly-once-stream",
        "lost_resume_answers",
        "two lost answers in a row lock the client out",
        (Edit("core.session.apply:_attached", "if link.confirmed:", "if True:"),),
    ),
    # -- the third fence: the term
    Mutant(
        "term_outside_the_transaction",
        "one-writer",
        "two_owners",
        "an append does not compare the term with the row",
        (Edit("store.planning:_plan_append", "if batch.term != head.term:", "if batch.term > head.term:"),),
    ),
    Mutant(
        "fold_before_the_term",
        "one-writer",
        "two_owners",
        "a new owner folds the log first and takes the term then",
        (
            Edit(
                "core.actors.supervisor:Supervisor._read_back",
                "folded = await self._fold(session_id, onto=seen)\n",
                "folded = seen; folded.state.term = owned.term\n",
            ),
            Edit(
                "core.actors.supervisor:Supervisor._take_term",
                "        return await",
                "        await trio.sleep(0.3)\n        return await",
            ),
        ),
    ),
    Mutant(
        "no_lease",
        "no-stale-audio",
        "old_owner_wakes",
        "a server writes however long ago its term was confirmed",
        (Edit("core.actors.lease:Lease.holds", "now < self.proved_at + LEASE_S and", ""),),
    ),
    Mutant(
        "new_owner_does_not_wait",
        "no-stale-audio",
        "two_owners_write",
        "a new owner writes while the old one still may",
        (Edit("core.actors.lease:Lease.holds", "and now >= self.quiet_until", ""),),
    ),
    # -- the ledger
    Mutant(
        "ack_not_clamped",
        "conservation",
        "bold_ack",
        "an ack counts beyond what was sent",
        (Edit(f"{OUTPUT}:_clamp", "max(0, min(ms, sent))", "max(0, ms)"),),
    ),
    Mutant(
        "history_takes_unheard_text",
        "heard-only",
        "cut_and_go_on",
        "the history has all that was made",
        (Edit("core.session.ledger:heard_text", "response.text[: heard_chars(response, heard_ms)]", "response.text"),),
    ),
    Mutant(
        "watermark_off_by_a_unit",
        "heard-only",
        "cut_and_go_on",
        "the word that was being spoken counts as heard",
        (
            Edit(
                "core.session.ledger:heard_chars",
                "response.marks[place - 1][0] if place else 0",
                "response.marks[min(place, len(response.marks) - 1)][0]",
            ),
        ),
    ),
    Mutant(
        "invalidated_forgotten",
        "conservation",
        "cut_and_go_on",
        "what a cut kills is not recorded",
        (Edit(f"{CUT}:cut", "if dead_ms > 0 or calls or response is not newest:", "if False:"),),
    ),
    Mutant(
        "call_outlives_its_cut",
        "calls",
        "cut_before_a_call",
        "a function call that a cut found undelivered stays in the conversation",
        (Edit(f"{CUT}:cut", "calls = undelivered_calls(response, ctx.cursor)", "calls = ()"),),
    ),
    Mutant(
        "late_call_taken",
        "calls",
        "cut_before_a_call",
        "a function call of a lane that is over becomes an event",
        (
            Edit(
                f"{OUTPUT}:model_call",
                "if active is None or command.epoch != state.epoch or command.response_id != active.response_id:",
                "if active is None:",
            ),
        ),
    ),
    Mutant(
        "told_before_it_is_fed",
        "told",
        "shown_to_a_new_worker",
        "a new worker's history names images that it never got",
        (Edit("core.session.react:_parts_told", "(*reference, *shown)", "reference"),),
    ),
    Mutant(
        "runtime_loss_cuts",
        "conservation",
        "runtime_dies",
        "the loss of a runtime cuts instead of draining",
        (Edit(f"{CUT}:drain", '"drain"', '"cut"'),),
    ),
    Mutant(
        "lost_audio_counts_as_heard",
        "heard-only",
        "audio_lost_on_its_way",
        "what was on its way when the link dropped stays sent",
        (
            Edit(
                "core.actors.door:Door.let_in",
                "outbox.resent(number, session.now_ns()) if number is not None else ()",
                "()",
            ),
        ),
    ),
    # -- ends
    Mutant(
        "two_ends",
        "one-end",
        "cut_and_go_on",
        "a cut ends the answer twice",
        (Edit(f"{CUT}:cut", "    return tuple(made)", "    return (*made, made[-1])"),),
    ),
    Mutant(
        "cut_without_an_end",
        "one-end",
        "cut_behind_a_stalled_socket",
        "a cut leaves the answer without an end",
        (Edit(f"{CUT}:cut", "if state.active is not None:", "if False:"),),
    ),
    Mutant(
        "memory_kept_after_a_failed_append",
        "one-end",
        "cut_that_is_lost",
        "an actor whose append failed goes on with what it remembers",
        (Edit("core.actors.session:Session.fail", "if self.failure is not None:", "if True:"),),
    ),
    # -- the stream
    Mutant(
        "gaps_not_announced",
        "exactly-once-stream",
        "cut_with_audio_on_its_way",
        "a resume does not name what will not come again",
        (Edit(f"{OUTBOX}.skipped", "if n <= number or not entry.dead:", "if n:"),),
    ),
    Mutant(
        "resumes_anything",
        "exactly-once-stream",
        "an_old_number",
        "a client is continued from where nothing is kept any more",
        (Edit(f"{OUTBOX}.knows", "self.first_number - 1 <= number <= self.head", "True"),),
    ),
    Mutant(
        "input_doubled",
        "exactly-once-stream",
        "input_sent_again",
        "a command that is sent again is done again",
        (Edit("core.session.machine:decide", "if event_id is not None and event_id in state.event_ids:", "if False:"),),
    ),
    Mutant(
        "fresh_client_at_the_head",
        "exactly-once-stream",
        "first_frames",
        "a fresh client misses what its own attachment adds",
        (
            Edit(
                "core.actors.door:Door.let_in",
                "head if number is None else number, opening",
                "number, opening",
            ),
        ),
    ),
    # -- the window
    Mutant(
        "window_takes_half_a_unit",
        "window",
        "long_talk",
        "the question of the first unit that stays leaves as well",
        (
            Edit(
                "core.session.window:slide", "last = lane.turns[place - 1].item_id", "last = lane.turns[place].item_id"
            ),
        ),
    ),
    Mutant(
        "window_never_slides",
        "window",
        "long_talk",
        "a lane is told more than the window holds",
        (Edit("core.session.window:slide", "lane.tokens <= high_low(state)[0]", "lane.tokens"),),
    ),
    Mutant(
        "dropped_turns_are_not_counted",
        "window",
        "long_talk",
        "what is kept of dropped turns is told and not counted",
        (Edit("core.session.window:lane_of", 'prefix += text_tokens(told.turns[0].text or "")', "pass"),),
    ),
    # -- bounds, replay
    Mutant(
        "turns_wait_without_bound",
        "bounded",
        "many_turns",
        "any number of turns may wait",
        (
            Edit(
                "core.session.decisions.input:commit_input",
                "if respond and len(state.queued) >= state.config.max_pending_commits:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "input_waits_without_bound",
        "bounded",
        "much_input",
        "any amount of input may lie uncommitted",
        (
            Edit(
                "core.session.decisions.input:append_audio",
                "if side.pending_bytes + size_bytes > state.config.max_pending_input_bytes:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replay_counts_as_waiting",
        "bounded",
        "long_replay",
        "what a client asks to have again counts as what it does not take",
        (Edit(f"{OUTBOX}.attach", "self.counted_above = self.head", "self.counted_above = 0"),),
    ),
    Mutant(
        "live_state_not_from_the_log",
        "replay-is-live",
        "cut_and_go_on",
        "a step changes the state beside its events",
        (Edit("core.session.machine:step", "    return Step(", "    state.activity_ns += 1\n    return Step("),),
    ),
)
