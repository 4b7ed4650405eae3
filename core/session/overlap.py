"""Speech over an answer: is it a remark that lets the assistant go on, or does it take the turn?

The same machine judges for every kind of model. A model that decides by itself (listen or speak, each unit) does so in
its outputs; for a cascade the detector's findings come here. The order of the rules is the order in which they can be
known: a session that never yields, what the client itself says, speech that went on too long for a remark, and at its end
what was said.
"""

from __future__ import annotations

import re

from core.session.config import SessionConfig

_SHORT_ACKS = """
mm mhm mmhm mmhmm mmm hm hmm hmhm uhhuh huh uh um ah aha oh ok okay yeah yep yes yup ya sure right good great nice wow
really cool exactly true alright gotcha fine understood interesting
"""

SHORT_ACKS = frozenset(_SHORT_ACKS.split())
"""Words that, alone or together, encourage and do not ask (backchannels)."""

SHORT_ACK_PHRASES = frozenset({"i see", "got it", "go on", "oh i see", "of course", "makes sense", "all right"})

SHORT_ACK_WORDS_MAX = 4


OVERLAP_ACTIONS = ("drop", "listen", "barge_in")

CLIENT_REASONS = ("client_overlap_action", "client_force_barge_in", "client_force_listen")
"""Why a decision is as it is, when the client made it."""


def is_short_ack(text: str) -> bool:
    """Whether a transcript is nothing but a short acknowledgement ("mm-hmm", "yeah, okay")."""
    joined = re.sub(r"(?<=\w)-(?=\w)", "", text.lower())
    words = re.findall(r"[a-z']+", joined)
    if not words or len(words) > SHORT_ACK_WORDS_MAX:
        return False
    return " ".join(words) in SHORT_ACK_PHRASES or all(word in SHORT_ACKS for word in words)


def may_barge_in(config: SessionConfig) -> bool:
    """Whether speech can cut an answer in this session at all."""
    detection = config.turn_detection
    return detection is not None and detection.interrupt_response and config.overlap_policy == "barge_in_on_speech"


def why_not(config: SessionConfig) -> str:
    """Why speech cuts nothing in this session."""
    return "policy_listen_only" if config.overlap_policy == "listen_only" else "interrupt_response_off"


def judge_ongoing(config: SessionConfig, speech_ms: int) -> tuple[str, str] | None:
    """While the speech goes on: a barge-in once it is too long for a remark; None: not known yet."""
    if speech_ms >= config.overlap_barge_in_ms:
        return "barge_in", "long_overlap_speech"
    return None


def judge_finished(config: SessionConfig, speech_ms: int, text: str | None) -> tuple[str, str]:
    """When the speech has ended within the barge-in threshold: by what was said, or by its length."""
    if text is None:
        if speech_ms <= config.overlap_short_ack_ms:
            return "listen", "short_ack"
        return "barge_in", "overlap_speech"
    if not text.strip():
        return "drop", "silence_or_noise"
    if is_short_ack(text):
        return "listen", "short_ack_transcript"
    return "barge_in", "overlap_speech"
