"""Deliberate faults in the three fences, in each place where one is checked: the epoch where output comes in and where frames
go out, the generation, the term.
"""

from __future__ import annotations

from tests.core.mutating import Edit, Mutant

OUTPUT = "core.session.decisions.output"
OF_THE_LANE = "active is None or command.epoch != state.epoch or command.response_id != active.response_id"
CUT = "core.session.decisions.cut"
OUTBOX = "core.actors.outbox:Outbox"

FENCE_MUTANTS: tuple[Mutant, ...] = (
    # -- the first fence: the epoch, where output comes in
    Mutant(
        "late_output_taken",
        "no-stale-audio",
        "late_output",
        "model output of a lane that is over becomes an event",
        (Edit(f"{OUTPUT}:model_output", f"if {OF_THE_LANE}:", "if active is None:"),),
    ),
    Mutant(
        "late_end_taken",
        "one-end",
        "late_end",
        "the end of a lane that is over ends an answer again",
        (Edit(f"{OUTPUT}:model_done", f"if {OF_THE_LANE}:", "if active is None:"),),
    ),
    Mutant(
        "late_wish_taken",
        "no-stale-audio",
        "late_wish",
        "a lane that is over begins an answer",
        (
            Edit(
                f"{OUTPUT}:model_speaks",
                "command.epoch != state.epoch or state.lane_epoch",
                "state.lane_epoch",
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
    Mutant(
        "cut_forgotten_when_read_back",
        "one-end",
        "cut_before_another_server_takes_over",
        "who reads a log back does not fence what its cuts killed",
        (
            Edit(
                "core.actors.folding:Folded._note",
                'if isinstance(event, e.EpochBump) and event.disposition == "cut":',
                "if False:",
            ),
        ),
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
        "token_confirmed_for_an_older_generation",
        "fences",
        "late_confirmation",
        "the first frame of a replaced attachment confirms the newest token",
        (Edit("core.session.decisions.link:confirm_token", " or link.generation != command.generation", ""),),
    ),
    Mutant(
        "frame_of_an_old_socket_counts",
        "exactly-once-stream",
        "late_frame_of_an_old_socket",
        "any socket's frame shows that the newest attachment's answer arrived",
        (
            Edit(
                "core.actors.session:Session.first_frame",
                "if attachment.generation == self.state.attachment.generation and not",
                "if not",
            ),
        ),
    ),
    Mutant(
        "old_token_accepted",
        "fences",
        "stolen_token",
        "the older token still opens the session after the new one has arrived",
        (
            Edit("core.actors.tokens:_check", "if not link.confirmed and link", "if link"),
            Edit("core.session.state:Attachment.confirm", 'self.previous_token_hash = ""', "pass"),
        ),
    ),
    Mutant(
        "no_second_chance_for_a_token",
        "exactly-once-stream",
        "lost_resume_answers",
        "a token is dead as soon as it was shown, though the new one may never arrive",
        (
            Edit(
                "core.session.state:Attachment.attach",
                "self.confirmed = event.resumed_from is None",
                "self.confirmed = True",
            ),
        ),
    ),
    Mutant(
        "second_chance_only_once",
        "exactly-once-stream",
        "lost_resume_answers",
        "two lost answers in a row lock the client out",
        (Edit("core.session.state:Attachment.attach", "if self.confirmed:", "if True:"),),
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
        "writes_under_anothers_term",
        "one-writer",
        "two_takers",
        "a new owner whose term was taken meanwhile goes on with the term that it finds in the log",
        (
            Edit(
                "core.actors.supervisor:Supervisor._read_back",
                "if folded.state.term != owned.term:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "token_checked_before_the_term_only",
        "fences",
        "token_that_was_replaced_meanwhile",
        "a new owner does not look at the token again once nobody else can change it",
        (
            Edit(
                "core.actors.supervisor:Supervisor._read_back",
                "check_token(folded.state, token)  # the",
                "pass  # the",
            ),
        ),
    ),
    Mutant(
        "swept_whoever_came",
        "exactly-once-stream",
        "swept_at_the_last_moment",
        "a session is ended for want of an owner although one has come meanwhile",
        (Edit("core.actors.supervisor:Supervisor._end_lost", "reason, row.position)", "reason, None)"),),
    ),
    Mutant(
        "no_lease",
        "no-stale-audio",
        "old_owner_wakes",
        "a server writes however long ago its term was confirmed",
        (Edit("core.actors.lease:Lease.holds", "now < self.proved_at + LEASE_S and", ""),),
    ),
    Mutant(
        "lost_term_goes_on",
        "no-stale-audio",
        "old_owner_asks",
        "a server that sees a newer term in the store takes it for its own",
        (
            Edit("core.actors.session:Session.lose_term", "if term > self.term and not self._ended:", "if False:"),
            Edit(
                "core.actors.housekeeping:Housekeeper._compare",
                'session.fail(TermRefused("the session is not ours any more"))',
                "pass",
            ),
        ),
    ),
    Mutant(
        "new_owner_does_not_wait",
        "no-stale-audio",
        "two_owners_write",
        "a new owner writes while the old one still may",
        (Edit("core.actors.lease:Lease.holds", "and now >= self.quiet_until", ""),),
    ),
)
