"""The siblings that ``vllm_plugin`` names. Imported by vLLM only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from gpu_runtime.engines.vllm_plugin import ITEM_ROWS_MAX, MODALITY


class _Info(BaseProcessingInfo):
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {MODALITY: ITEM_ROWS_MAX}


class _Dummy(BaseDummyInputsBuilder):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], *_: Any, **__: Any) -> dict[str, Any]:
        return {}


class _Processor(BaseMultiModalProcessor):
    """Never asked to process anything: the items come ready."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> dict[str, Any]:
        return {}

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        return []


class _TakesRows:
    """``embedding``: [items, rows, hidden], or a list of [rows, hidden]."""

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> None:
        return None

    def get_language_model(self) -> Any:
        return self

    def embed_multimodal(self, embedding: Any = None, **_: Any) -> list[torch.Tensor]:
        return [] if embedding is None else list(embedding)

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Any = None, **_: Any
    ) -> torch.Tensor:
        """[tokens] -> [tokens, hidden], the rows in the places that ``is_multimodal`` marks."""
        hidden: torch.Tensor = self.model.embed_input_ids(input_ids)  # type: ignore[attr-defined]
        if is_multimodal is None or multimodal_embeddings is None or not len(multimodal_embeddings):
            return hidden
        rows = torch.cat([item.to(hidden.device, hidden.dtype) for item in multimodal_embeddings])
        # in place of an index_put: the mask stays on the device, nothing waits for it
        return hidden.masked_scatter(is_multimodal.to(hidden.device).unsqueeze(-1), rows)


@MULTIMODAL_REGISTRY.register_processor(_Processor, info=_Info, dummy_inputs=_Dummy)
class DuologueLlamaForCausalLM(_TakesRows, LlamaForCausalLM, SupportsMultiModal):
    """Llama that takes rows."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        LlamaForCausalLM.__init__(self, vllm_config=vllm_config, prefix=prefix)


@MULTIMODAL_REGISTRY.register_processor(_Processor, info=_Info, dummy_inputs=_Dummy)
class DuologueQwen3ForCausalLM(_TakesRows, Qwen3ForCausalLM, SupportsMultiModal):
    """Qwen3 that takes rows."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        Qwen3ForCausalLM.__init__(self, vllm_config=vllm_config, prefix=prefix)
