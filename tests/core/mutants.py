"""Deliberate faults in the product, each by a name, and the promise and the story that catch it."""

from __future__ import annotations

from tests.core.mutating import Edit, Mutant

OUTPUT = "core.session.decisions.output"
OF_THE_LANE = "active is None or command.epoch != state.epoch or command.response_id != active.response_id"
CUT = "core.session.decisions.cut"
OUTBOX = "core.actors.outbox:Outbox"

MUTANTS: tuple[Mutant, ...] = (
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
        (Edit(f"{OUTPUT}:model_call", f"if {OF_THE_LANE}:", "if active is None:"),),
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
    Mutant(
        "memory_rolled_back",
        "one-end",
        "cut_that_is_lost",
        "an actor whose append failed goes back to what it remembers of before",
        (
            Edit(
                "core.actors.session:Session.step",
                "result = step(",
                "import copy; self.before = copy.deepcopy(self.state)\n    result = step(",
            ),
            Edit(
                "core.actors.session:Session.fail",
                "if self.failure is not None:",
                "self.state = self.before\n    if True:",
            ),
        ),
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
    Mutant(
        "refused_words_are_lost",
        "exactly-once-stream",
        "flooded_runtime",
        "what the runtime's full queue refuses is forgotten",
        (Edit("core.actors.line:RuntimeLine.tell", "size_bytes = weight(message)", "return Fate.LOST"),),
    ),
    Mutant(
        "refused_words_are_overtaken",
        "exactly-once-stream",
        "flooded_runtime",
        "what the runtime's queue takes goes before what it refused",
        (Edit("core.actors.line:RuntimeLine.tell", "self.settle() and self._take(message)", "self._take(message)"),),
    ),
    Mutant(
        "ear_left_behind",
        "bounded",
        "flooded_runtime",
        "nobody tells a runtime again that a session is over",
        (Edit("core.actors.supervisor:Supervisor._close_ear", "and not session.line.settle()", "and False"),),
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
        "output_held_without_bound",
        "bounded",
        "lane_that_does_not_pause",
        "any amount of output is held for a client that is not ready for it",
        (
            Edit(
                "core.actors.pacer:Pacer.put",
                "if len(self.queue) >= HELD_ITEMS_MAX or self.held_bytes + size_bytes > HELD_BYTES_MAX:",
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
        "turn_lost_with_its_worker",
        "told",
        "worker_dies_before_the_transcript",
        "a turn whose transcript died with the worker is not fed to the next one",
        (Edit("core.session.react:_Ear.fed", "for item_id, turn in self._turns.items():", "for item_id, turn in ():"),),
    ),
    Mutant(
        "turn_read_for_ever",
        "bounded",
        "worker_dies_before_the_transcript",
        "a turn whose transcript is there is fed to every new worker",
        (Edit("core.session.conversation:item_changed", "if item.text is not None:", "if False:"),),
    ),
    Mutant(
        "nonsense_taken",
        "fences",
        "time_turned_back",
        "a command is decided whatever its arguments",
        (Edit("core.session.machine:decide", "if bad is not None:", "if False:"),),
    ),
    Mutant(
        "told_as_before",
        "heard-only",
        "cut_and_go_on",
        "what is kept of how an answer is told is not forgotten when it changes",
        (Edit("core.session.folds.moves:answer_changed", "if item is not None:", "if False:"),),
    ),
    Mutant(
        "live_state_not_from_the_log",
        "replay-is-live",
        "cut_and_go_on",
        "a step changes the state beside its events",
        (Edit("core.session.machine:step", "    return Step(", "    state.activity_ns += 1\n    return Step("),),
    ),
)
