"""The model's own tokenizer, as the cascade uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.models.cascade.parts import ChatMessage, PartFailed

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=600)]

TEXTS = (
    "What is the capital of France?",
    "7" * 60,
    "Grüße, 東京! \U0001f468\u200d\U0001f469\u200d\U0001f467 ñ",
    "  a\n\n b\t",
)


def test_it_streams_counts_and_refuses(smollm2: Path) -> None:
    from gpu_runtime.models.cascade.vllm_chat import load_tokenizer

    tokenizer = load_tokenizer(smollm2)
    theirs: Any = tokenizer._tokenizer
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        stream = tokenizer.stream()
        assert "".join(map(stream.push, ids)) == tokenizer.text(ids) == text
    talk = [ChatMessage("system", "Be kind."), ChatMessage("user", "Hello."), ChatMessage("assistant", "Hello!")]
    for text in TEXTS:
        message = ChatMessage("user", text)
        added = len(tokenizer.ids([*talk, message])) - len(tokenizer.ids(talk))
        assert added <= tokenizer.tokens(message) <= added + 3
    theirs.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(PartFailed) as caught:
        tokenizer.ids(talk)
    assert (caught.value.code, str(caught.value)) == ("model_error", "the model's tokenizer failed: TemplateError")
