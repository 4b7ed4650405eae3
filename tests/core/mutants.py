"""Deliberate faults in the product, each by a name, and the promise and the story that catch it."""

from __future__ import annotations

from tests.core.fence_mutants import CUT, FENCE_MUTANTS, OF_THE_LANE, OUTBOX, OUTPUT
from tests.core.mutating import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    *FENCE_MUTANTS,
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
                "outbox.resent(number, session.now_ns())",
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
        (Edit(f"{OUTBOX}.rewind", "self.counted_above = self.head", "self.counted_above = 0"),),
    ),
    Mutant(
        "turn_lost_with_its_worker",
        "told",
        "worker_dies_before_the_transcript",
        "a turn whose transcript died with the worker is not fed to the next one",
        (Edit("core.session.react:_cues", "for item_id, turn in side.unread.items():", "for item_id, turn in ():"),),
    ),
    Mutant(
        "turn_read_without_its_end",
        "told",
        "turn_ends_within_a_chunk",
        "a chunk in which a turn ends is fed to a new worker behind that turn",
        (Edit("core.session.folds.input:_keep_unread", "(*taken, *shared)", "taken"),),
    ),
    Mutant(
        "chunk_fed_twice",
        "told",
        "turn_ends_within_a_chunk",
        "a chunk in which a turn ends is fed once for that turn and once as pending",
        (
            Edit(
                "core.session.react:_cues",
                "for chunk in side.pending:\n        if chunk.start_ms >= heard_ms:",
                "for chunk in side.pending:\n        if True:",
            ),
        ),
    ),
    Mutant(
        "turn_found_twice",
        "told",
        "turn_ends_within_a_chunk",
        "a new worker's detector hears the end of a turn that was read already",
        (
            Edit(
                "core.session.react:_cues",
                "config.turn_detection if chunk.start_ms >= side.closed_ms else None",
                "config.turn_detection",
            ),
        ),
    ),
    Mutant(
        "turn_takes_the_next_ones_beginning",
        "told",
        "turn_ends_within_a_chunk",
        "a detected turn takes what was said while it was being read",
        (
            Edit(
                "core.session.decisions.input:_close_turn",
                "end_ms = max(speech.start_ms, command.end_ms)",
                "end_ms = max(state.input.now_ms, command.end_ms)",
            ),
        ),
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
        "records_left_out_of_the_chain",
        "replay-is-live",
        "altered_records",
        "the chain of a log says nothing of its records",
        (Edit("core.session.digest:chain_link_begin", "{''.join(records)}", ""),),
    ),
    Mutant(
        "chain_begins_anew",
        "replay-is-live",
        "altered_records",
        "a link of the chain says nothing of the one before it",
        (Edit("store.planning:_link", "chain_link(previous,", "chain_link(CHAIN_START,"),),
    ),
    Mutant(
        "live_state_not_from_the_log",
        "replay-is-live",
        "cut_and_go_on",
        "a step changes the state beside its events",
        (Edit("core.session.machine:step", "    return Step(", "    state.activity_ns += 1\n    return Step("),),
    ),
)
