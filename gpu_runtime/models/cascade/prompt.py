"""From the heard history to chat messages that fit the model's context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.ports.runtime import HistoryTurn
from gpu_runtime.models.cascade.parts import ChatCall, ChatMessage

PERSONA = "You are a friendly voice assistant. Answer in one or two short spoken sentences."

EXAMPLES = (
    ChatMessage("user", "What is the capital of Italy?"),
    ChatMessage("assistant", "The capital of Italy is Rome."),
    ChatMessage("user", "How many wheels does a car have?"),
    ChatMessage("assistant", "A car has four wheels."),
    ChatMessage("user", "Why is the sea salty?"),
    ChatMessage("assistant", "Rivers carry salt from rocks into the sea, and the salt stays there."),
)
"""What keeps a very small model short and in English. More of them make it worse, not better."""

BYTES_PER_TOKEN = 3
"""English has about four; the estimate has to be on the safe side, for there is no tokenizer to ask."""

MESSAGE_TOKENS = 6
"""What the chat template puts around a message."""


class PromptBuilder:
    """Builds prompts for one language model.

    ``context_tokens`` 0: the model's own limit is unknown, nothing is dropped. ``answer_tokens`` are kept free. ``calls``: it
    knows function calls; any other is told of their results only, as if the user had said them.
    """

    def __init__(
        self, persona: str, few_shot: bool, context_tokens: int, answer_tokens: int, calls: bool = False
    ) -> None:
        self._persona = persona or PERSONA
        self._examples = EXAMPLES if few_shot else ()
        self._calls = calls
        self._budget = max(context_tokens - answer_tokens, context_tokens // 2)

    def build(
        self, instructions: str, history: Sequence[HistoryTurn], text_of: Callable[[str], str]
    ) -> tuple[ChatMessage, ...]:
        """``text_of`` gives the text of a turn that the ear transcribed, by its item id."""
        results = {turn.call_id: turn.text or "" for turn in history if turn.role == "tool" and turn.call_id}
        answered: set[str] = set()
        turns: list[ChatMessage] = []
        for turn in history:
            if turn.name:
                if self._calls and turn.call_id in results:  # its result stands behind it, whatever was said meanwhile
                    answered.add(turn.call_id)
                    turns.append(ChatMessage("assistant", "", (ChatCall(turn.call_id, turn.name, turn.text or ""),)))
                    turns.append(ChatMessage("tool", results[turn.call_id], call_id=turn.call_id))
            elif turn.call_id not in answered:
                text = text_of(turn.item_id) if turn.text is None else turn.text
                turns.append(ChatMessage(_role(turn.role), text))
        return self.assemble(instructions, turns)

    def assemble(self, instructions: str, turns: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """System message, examples, then the turns: empty ones left out, neighbours of one role made one (chat templates
        want them to alternate), the oldest dropped when there is no room."""
        head = [ChatMessage("system", instructions or self._persona), *self._examples]
        merged: list[ChatMessage] = []
        for turn in turns:
            text = turn.content.strip()
            if turn.calls or turn.call_id:
                merged.append(turn)
            elif not text:
                continue
            elif merged and merged[-1].role == turn.role and not merged[-1].calls:
                merged[-1] = ChatMessage(turn.role, f"{merged[-1].content} {text}")
            else:
                merged.append(ChatMessage(turn.role, text))
        return (*head, *self._fit(sum(map(tokens_of, head)), merged))

    def _fit(self, used: int, turns: list[ChatMessage]) -> list[ChatMessage]:
        """A window that slid with each turn would change the prompt's beginning each time, and nothing of it could come from
        the cache."""
        if not self._budget:
            return turns
        return newest(turns, max(self._budget - used, self._budget // 4), tokens_of)


def head_of(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """What a prompt begins with before its conversation does: what is said to the model, and examples."""
    systems = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    with_examples = systems + len(EXAMPLES)
    return messages[: with_examples if tuple(messages[systems:with_examples]) == EXAMPLES else systems]


def newest(turns: Sequence[ChatMessage], room: int, cost: Callable[[ChatMessage], int]) -> list[ChatMessage]:
    """Those that fit into ``room``, the last in any case. The same turns and more of them begin at the same place, until the
    room is full again: then half of it is emptied at once."""
    start, total = 0, 0
    for place, turn in enumerate(turns):
        total += cost(turn)
        while total > room and start < place:
            while start < place and (total > room // 2 or turns[start].role != "user"):
                total -= cost(turns[start])
                start += 1
    while 0 < start < len(turns) - 1 and turns[start].role != "user":  # no answer without its question
        start += 1
    return list(turns[start:])


def tokens_of(message: ChatMessage) -> int:
    """An estimate from above."""
    size = len(message.content.encode()) + sum(len(call.name) + len(call.arguments.encode()) for call in message.calls)
    return size // BYTES_PER_TOKEN + MESSAGE_TOKENS


def _role(role: str) -> str:
    return role if role in ("system", "user", "assistant") else "user"
