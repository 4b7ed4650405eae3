"""What runs inside vLLM's own processes, of which each loads this through the entry point group ``vllm.general_plugins``.

Embeddings: model classes that take ready-made rows as a multimodal item. vLLM refuses plain prompt embeddings in a
streaming request, but it takes a multimodal item there, and an item may be its own embedding. So each text model gets a
sibling whose one modality is ``audio`` and whose "encoder" gives back what it got.

Lives: an engine's process ends with the one that started it, however that ended, and not before: a service manager sends
SIGTERM to all processes of a service at once, but a server that drains needs its engine.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

SIBLINGS = {
    "LlamaForCausalLM": "DuologueLlamaForCausalLM",
    "Qwen3ForCausalLM": "DuologueQwen3ForCausalLM",
}
"""Architecture in a model's config.json -> the class that takes embeddings too."""

HOST_PID = "DUOLOGUE_ENGINE_HOST"
"""The environment variable that names the process that started the engine. Without it, vLLM runs for somebody else."""

MODALITY = "audio"
ITEM_ROWS_MAX = 1_024


_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Tell vLLM of the siblings; they are imported when one of them is used. In an engine's process: tie its life."""
    from vllm import ModelRegistry

    if os.environ.get(HOST_PID, str(os.getpid())) != str(os.getpid()):
        live_with_parent()

    for name in SIBLINGS.values():
        ModelRegistry.register_model(name, f"gpu_runtime.engines.vllm_models:{name}")


def live_with_parent() -> None:
    """End when the parent does, by SIGKILL; nothing but that and a parent that lives on decides (Linux only)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # it was quicker
        os._exit(1)
