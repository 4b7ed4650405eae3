"""Event types on the wire. OpenAI's names are as in the GA Realtime API; the rest belongs to the duplex dialect."""

from __future__ import annotations

# client -> server
SESSION_UPDATE = "session.update"
SESSION_RESUME = "session.resume"
SESSION_EVENT_ACK = "session.event_ack"
SESSION_HEARTBEAT = "session.heartbeat"
SESSION_CLOSE = "session.close"
AUDIO_APPEND = "input_audio_buffer.append"
AUDIO_COMMIT = "input_audio_buffer.commit"
AUDIO_CLEAR = "input_audio_buffer.clear"
OUTPUT_CLEAR = "output_audio_buffer.clear"
RESPONSE_CREATE = "response.create"
RESPONSE_CANCEL = "response.cancel"
ITEM_CREATE = "conversation.item.create"
ITEM_DELETE = "conversation.item.delete"
ITEM_RETRIEVE = "conversation.item.retrieve"
ITEM_TRUNCATE = "conversation.item.truncate"
PLAYBACK_ACK = "playback.ack"
BARGE_IN = "barge_in"
INPUT_CANCEL = "input.cancel"
TURN_SIGNAL = "turn.signal"

CLIENT_ALIASES = {
    "close": SESSION_CLOSE,
    "close_session": SESSION_CLOSE,
    "input.commit": AUDIO_COMMIT,
    "audio.playback_ack": PLAYBACK_ACK,
    "signal_turn": TURN_SIGNAL,
    "input_text.append": "input.text.append",
    "push_text": "input.text.append",
}
"""Other names under which a client may send an event."""

TRANSPORT_EVENTS = frozenset({SESSION_RESUME, SESSION_EVENT_ACK, SESSION_HEARTBEAT})
"""Client events that never become a command: they belong to the attachment and are not in the log."""

# server -> client
SESSION_CREATED = "session.created"
SESSION_UPDATED = "session.updated"
SESSION_RESUMED = "session.resumed"
SESSION_REPLACED = "session.replaced"
SESSION_RESYNC_REQUIRED = "session.resync_required"
SESSION_CLOSED = "session.closed"
SESSION_EXPIRED = "session.expired"
SESSION_HEARTBEAT_ACK = "session.heartbeat_ack"
SESSION_QUEUED = "session.queued"
SESSION_QUEUE_UPDATE = "session.queue_update"
TURN_EVENT = "turn.event"
OVERLAP_DECISION = "overlap.decision"
PLAYBACK_ACKNOWLEDGED = "playback.acknowledged"
SPEECH_STARTED = "input_audio_buffer.speech_started"
SPEECH_STOPPED = "input_audio_buffer.speech_stopped"
AUDIO_COMMITTED = "input_audio_buffer.committed"
AUDIO_CLEARED = "input_audio_buffer.cleared"
OUTPUT_CLEARED = "output_audio_buffer.cleared"
INPUT_TRANSCRIPT_DONE = "conversation.item.input_audio_transcription.completed"
ITEM_ADDED = "conversation.item.added"
ITEM_CREATED = "conversation.item.created"
ITEM_DONE = "conversation.item.done"
ITEM_DELETED = "conversation.item.deleted"
ITEM_RETRIEVED = "conversation.item.retrieved"
ITEM_TRUNCATED = "conversation.item.truncated"
RESPONSE_CREATED = "response.created"
RESPONSE_LISTEN = "response.listen"
RESPONSE_SPEAK = "response.speak"
OUTPUT_ITEM_ADDED = "response.output_item.added"
OUTPUT_ITEM_DONE = "response.output_item.done"
CONTENT_PART_ADDED = "response.content_part.added"
CONTENT_PART_DONE = "response.content_part.done"
AUDIO_DELTA = "response.output_audio.delta"
AUDIO_DONE = "response.output_audio.done"
TRANSCRIPT_DELTA = "response.output_audio_transcript.delta"
TRANSCRIPT_DONE = "response.output_audio_transcript.done"
TEXT_DELTA = "response.output_text.delta"
TEXT_DONE = "response.output_text.done"
ARGUMENTS_DELTA = "response.function_call_arguments.delta"
ARGUMENTS_DONE = "response.function_call_arguments.done"
RESPONSE_DONE = "response.done"
RATE_LIMITS = "rate_limits.updated"
ERROR = "error"

UNNUMBERED = frozenset(
    {
        SESSION_CREATED,
        SESSION_RESUMED,
        SESSION_REPLACED,
        SESSION_RESYNC_REQUIRED,
        SESSION_HEARTBEAT_ACK,
        SESSION_QUEUED,
        SESSION_QUEUE_UPDATE,
    }
)
"""Server events that never carry a number: they are about the attachment, not about the session."""

NUMBER = "server_event_seq"
"""The field that carries a wire event's number."""

STATUS_COMPLETED = "completed"
STATUS_CANCELLED = "cancelled"
