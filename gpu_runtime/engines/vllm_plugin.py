"""vLLM's side of embeddings: model classes that take ready-made rows as a multimodal item.

vLLM refuses plain prompt embeddings in a streaming request, but it takes a multimodal item there, and an item may be its
own embedding. So each text model gets a sibling whose one modality is ``audio`` and whose "encoder" gives back what it got.
vLLM loads this through the entry point group ``vllm.general_plugins``, in each of its processes.
"""

from __future__ import annotations

SIBLINGS = {
    "LlamaForCausalLM": "DuologueLlamaForCausalLM",
    "Qwen3ForCausalLM": "DuologueQwen3ForCausalLM",
}
"""Architecture in a model's config.json -> the class that takes embeddings too."""

MODALITY = "audio"
ITEM_ROWS_MAX = 1_024


def register() -> None:
    """Tell vLLM of the siblings; they are imported when one of them is used."""
    from vllm import ModelRegistry

    for name in SIBLINGS.values():
        ModelRegistry.register_model(name, f"gpu_runtime.engines.vllm_models:{name}")
