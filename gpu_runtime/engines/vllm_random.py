"""Writes a model of a given shape with random weights, for tests and benchmarks: speed does not depend on the weights, and
greedy tokens of wide random weights differ from step to step, so that a lost one shows.

usage: python -m gpu_runtime.engines.vllm_random SHAPE FOLDER [--config-only]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "tiny-llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 2_048,
        "rms_norm_eps": 1e-5,
    },
    "qwen3-8b": {  # the text model of MiniCPM-o 4.5
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4_096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "rms_norm_eps": 1e-6,
    },
    "tiny-qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 2_048,
        "rms_norm_eps": 1e-6,
    },
}
COMMON = {
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}


def write_config(shape: str, folder: Path) -> dict[str, Any]:
    """The config.json alone. Raises KeyError for an unknown shape."""
    config = {**COMMON, **SHAPES[shape]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return config


def write_model(shape: str, folder: Path, seed: int = 0) -> None:
    """Config and weights (bfloat16, safetensors)."""
    import torch
    from safetensors.torch import save_file

    config = write_config(shape, folder)
    generator = torch.Generator().manual_seed(seed)

    def wide(*size: int, scale: float = 1.2) -> Any:
        return (torch.randn(*size, generator=generator) * (scale / size[-1] ** 0.5)).to(torch.bfloat16)

    def ones(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    weights = {
        "model.embed_tokens.weight": wide(config["vocab_size"], hidden, scale=10.0),
        "model.norm.weight": ones(hidden),
        "lm_head.weight": wide(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        weights |= {
            f"{name}input_layernorm.weight": ones(hidden),
            f"{name}post_attention_layernorm.weight": ones(hidden),
            f"{name}self_attn.q_proj.weight": wide(queries, hidden),
            f"{name}self_attn.k_proj.weight": wide(keys, hidden),
            f"{name}self_attn.v_proj.weight": wide(keys, hidden),
            f"{name}self_attn.o_proj.weight": wide(hidden, queries),
            f"{name}mlp.gate_proj.weight": wide(inner, hidden),
            f"{name}mlp.up_proj.weight": wide(inner, hidden),
            f"{name}mlp.down_proj.weight": wide(hidden, inner),
        }
        if config["model_type"] == "qwen3":
            weights |= {f"{name}self_attn.q_norm.weight": ones(head), f"{name}self_attn.k_norm.weight": ones(head)}
    save_file(weights, folder / "model.safetensors")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Writes a model with random weights.")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config-only", action="store_true")
    options = parser.parse_args()
    if options.config_only:
        write_config(options.shape, options.folder)
    else:
        write_model(options.shape, options.folder)


if __name__ == "__main__":
    main()
