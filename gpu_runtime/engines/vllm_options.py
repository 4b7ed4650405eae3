"""How a vLLM engine is started. No vllm here: options can be read and checked without it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs

from gpu_runtime.engines.vllm_plugin import HOST_PID, SIBLINGS
from gpu_runtime.plugin import ModelUnavailable

KNOWN_VERSIONS = ("0.26.", "0.32.")
"""Versions of vLLM whose scheduler ``vllm_scheduler`` is known to fit. Others work too: a truncated lane then takes a new
request over its heard part, logits that are no numbers are not noticed, and a long prompt is computed in pieces also where
nobody speaks."""

SCHEDULERS = "gpu_runtime.engines.vllm_scheduler"
CUT = "cut!"
CHUNK = "chunk"
"""In a chunk's extra_args: its number in its request, from 1."""

KEEP_TOKENS = "keep_tokens"
"""In a chunk's extra_args: forget what the request holds behind that position first."""

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIXED_SIZES = (192, 256, 384, 512, 768)

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
}
"""The engine tells nobody that it runs, looks at its logits, loads nothing from elsewhere, and is not forked from a process
whose other threads may hold locks. What the user set stays."""


@attrs.frozen
class VllmOptions:
    """``model``: a folder as Hugging Face's save_pretrained writes it (or, with ``random_weights``, its config.json)."""

    model: str
    lane_tokens_max: int = 4_096
    requests_max: int = 64
    """Lanes that hold KV at once; vLLM's max_num_seqs."""
    step_tokens_max: int = 2_048
    """How much one step computes at most; vLLM's max_num_batched_tokens."""
    piece_tokens: int = 64
    """How much a step computes of each long prompt while others decode; vLLM's long_prefill_token_threshold. So few ride
    along: reading the weights takes longer than computing them."""
    block_tokens: int = 32
    """On a CPU a multiple of 32; 16 is usual on a GPU."""
    kv_mib: int = 0
    """Memory for KV; 0: what ``gpu_share`` leaves (on a GPU), or 512 MiB (on a CPU)."""
    gpu_share: float = 0.85
    dtype: str = "bfloat16"
    embeddings: bool = False
    """Take embeddings beside token ids (architectures in ``vllm_plugin``)."""
    random_weights: bool = False
    eager: bool = False
    """No CUDA graphs. A CPU has none anyway."""
    graph_sizes: tuple[int, ...] = ()
    """Capture steps of so many tokens; none: ``captured``."""
    graph_mode: str = "FULL"
    """Captures steps that take prompts in too, where the attention's kernels can (FlashAttention 3; with others vLLM says so
    and captures less). ``FULL_DECODE_ONLY``: those that only decode."""
    rewinds: bool = True
    """Truncate a lane in its own request, where this version of vLLM allows it (KNOWN_VERSIONS)."""
    tokenizer: bool = False
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """The model's config.json. Raises ModelUnavailable."""
        path = Path(self.model).expanduser() / "config.json"
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"vLLM needs a folder with a Hugging Face model: {path}: {error}") from error
        return config

    def can_rewind(self, version: str) -> bool:
        """Whether requests go back, with that version of vLLM."""
        return self.rewinds and is_known(version)

    def engine_arguments(self, on_cpu: bool, version: str = "") -> dict[str, Any]:
        """For AsyncEngineArgs of that version of vLLM. Raises ModelUnavailable."""
        if on_cpu and self.block_tokens % 32:
            raise ModelUnavailable(f"block_tokens is {self.block_tokens}; on a CPU it must be a multiple of 32")
        arguments: dict[str, Any] = {
            "model": str(Path(self.model).expanduser()),
            "load_format": "dummy" if self.random_weights else "auto",
            "skip_tokenizer_init": not self.tokenizer,
            "max_model_len": self.lane_tokens_max,
            "max_num_seqs": self.requests_max,
            "max_num_batched_tokens": self.step_tokens_max,
            "long_prefill_token_threshold": min(self.piece_tokens, self.lane_tokens_max),
            "block_size": self.block_tokens,
            "dtype": self.dtype,
            "seed": self.seed,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            "enforce_eager": self.eager or on_cpu,
        }
        if is_known(version):  # also for requests that do not go back: it sees to logits that are no numbers
            arguments["scheduler_cls"] = f"{SCHEDULERS}.{'LaneScheduler' if on_cpu else 'AsyncLaneScheduler'}"
        if self.kv_mib or on_cpu:
            arguments["kv_cache_memory_bytes"] = (self.kv_mib or 512) << 20
        else:
            arguments["gpu_memory_utilization"] = self.gpu_share
        if not arguments["enforce_eager"]:
            arguments["compilation_config"] = {
                "mode": 0,
                "cudagraph_mode": self.graph_mode,
                "cudagraph_capture_sizes": list(self.graph_sizes or captured(self.requests_max, self.step_tokens_max)),
            }
        if self.embeddings:
            arguments |= self._embedding_arguments()
        return arguments

    def _embedding_arguments(self) -> dict[str, Any]:
        names = self.config().get("architectures") or [""]
        sibling = SIBLINGS.get(names[0])
        if sibling is None:
            raise ModelUnavailable(
                f"embeddings need one of {', '.join(SIBLINGS)}; this model is {names[0] or 'unnamed'}"
            )
        return {
            "hf_overrides": {"architectures": [sibling]},
            "limit_mm_per_prompt": {"audio": 0},  # none but ready-made ones
            "enable_mm_embeds": True,
        }


def captured(requests_max: int, step_tokens_max: int) -> tuple[int, ...]:
    """Tokens in the steps that are worth a CUDA graph: decoding alone, up to every request, and beside it new input: units,
    and a piece or two of a slide. A step takes the graph of the next size; a larger one runs without."""
    sizes = {size for size in GRAPH_SIZES if size < requests_max} | {requests_max}
    return tuple(sorted(sizes | {size for size in MIXED_SIZES if requests_max < size <= step_tokens_max}))


def is_known(version: str) -> bool:
    """Whether ``vllm_scheduler`` runs in that version of vLLM."""
    return version.startswith(KNOWN_VERSIONS)


def boundary(number: int) -> int:
    """Stands among a request's tokens: what follows is the chunk's of that number. No token is negative."""
    return -number


def after_boundary(ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """(number of the chunk that the last boundary names, 0: there is none; the tokens after it)."""
    place = next((place for place in reversed(range(len(ids))) if ids[place] < 0), None)
    return (0, ids) if place is None else (-ids[place], ids[place + 1 :])


def cut_id(name: str, number: int) -> str:
    """To be aborted in place of the request ``name``: ends its chunk of that number only."""
    return f"{CUT}{number}!{name}"


def cut_of(cut: str) -> tuple[str, int]:
    """What ``cut_id`` was made of."""
    number, _, name = cut.removeprefix(CUT).partition("!")
    return name, int(number)


def blocks_to_lose(blocks: int) -> int:
    """How many of an engine's KV blocks may be lost to numbers that are none; no lane may count on them."""
    return max(blocks // 64, 8)


def quiet() -> None:
    """Set QUIET and HOST_PID in this process's environment, before vllm is imported."""
    os.environ[HOST_PID] = str(os.getpid())
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
