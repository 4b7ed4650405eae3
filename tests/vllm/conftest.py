"""A real server whose cascade thinks on real vLLM, in processes of their own; SmolLM2's weights; and a second opinion.

One server for all of these tests, since its model takes long to start. A plugin, which vLLM's own processes load, can make it
run out of memory, or lose its GPU (``trouble``); its logits for a prompt with the word POISON are no numbers.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from adapters.bench.own_server import PACKAGES, PROGRAM, Child, Launch, ServerProcess
from gpu_runtime.models.cascade.parts import ChatMessage

if importlib.util.find_spec("vllm") is None:  # an environment of its own: make test-vllm
    collect_ignore_glob = ["test_*.py"]

START_TIMEOUT_S = 600.0
ROOT = Path(__file__).parents[2]

POISON, POISON_TOKEN = " plutonium", 41_115
"""A word that SmolLM2 knows as one token, and what its embedding is here: no number."""

TROUBLE = """
from pathlib import Path

def register():
    import torch
    from vllm.model_executor.models.llama import LlamaModel
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    embed = LlamaModel.embed_input_ids

    def embed_input_ids(self, input_ids):
        return embed(self, input_ids).masked_fill((input_ids == {poison}).unsqueeze(-1), torch.nan)

    LlamaModel.embed_input_ids = embed_input_ids

    compute = GPUModelRunner.execute_model

    def execute_model(self, *rest, **named):
        flag = Path({flag!r})
        if flag.exists():
            trouble = flag.read_text()
            flag.unlink()
            if trouble == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return compute(self, *rest, **named)

    GPUModelRunner.execute_model = execute_model
"""


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2's weights as vLLM reads them; written once, and kept."""
    folder = ROOT / "build" / "smollm2"
    if not folder.is_dir():
        from gpu_runtime.engines.vllm_gguf import convert
        from gpu_runtime.engines.vllm_gguf import smollm2 as packed

        unfinished = folder.with_name(f"smollm2-{os.getpid()}")
        unfinished.mkdir(parents=True)
        convert(packed(), unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another run was quicker
            shutil.rmtree(unfinished)
    return folder


@attrs.define(eq=False)
class VllmServer(ServerProcess):
    """``trouble``: a file; when it comes to be, vLLM's next step runs out of ``memory``, or has a ``device`` error, by what
    stands in it."""

    trouble: Path = Path()

    def tree(self) -> list[int]:
        """The worker, then every process below it."""
        (worker,) = [pid for pid in children(self.pid) if b"gpu_runtime.worker" in command(pid)]
        found = [worker]
        for pid in found:
            found.extend(children(pid))
        return found

    def engine(self) -> int:
        """vLLM's engine process."""
        worker, *others = self.tree()
        (engine,) = [pid for pid in children(worker) if pid in others and b"resource_tracker" not in command(pid)]
        return engine


@pytest.fixture
def vllm_server(one_server: VllmServer) -> VllmServer:
    """Ready to talk, whatever the test before did to it."""
    if not one_server.alive:
        one_server.start()
    one_server.wait_ready(START_TIMEOUT_S)
    return one_server


@pytest.fixture(scope="session")
def one_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Started once."""
    folder = tmp_path_factory.mktemp("vllm")
    plugins = folder / "plugins"
    install_trouble(plugins, folder / "trouble")
    options = (f"llm=vllm:{smollm2}", "llm_dtype=float32", "llm_kv_mib=256")
    flags = [flag for option in options for flag in ("--model-option", option)]
    server = VllmServer(folder, ("--drain-s", "0", *flags), launch=launch_with(plugins), trouble=folder / "trouble")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def launch_with(plugins: Path) -> Launch:
    """A server that sees the distributions in that folder as installed."""

    def launch(arguments: Sequence[str], words: Path) -> Child:
        paths = os.pathsep.join((str(PACKAGES), str(plugins)))
        with words.open("ab") as log:
            return subprocess.Popen(
                [*PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": paths},
                cwd=words.parent,
            )

    return launch


class Judge:
    """What one request over a whole prompt gives, greedily, by another implementation (transformers)."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # beside a server that uses all cores, threads would wait for each other
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self._model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)

    def tokens(self, text: str) -> int:
        """How many it is."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def answer(self, messages: Sequence[ChatMessage], max_tokens: int) -> tuple[str, bool]:
        """The text, and whether it ended by itself."""
        given = [{"role": message.role, "content": message.content} for message in messages]
        text = self._tokenizer.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        with self._torch.inference_mode():
            whole = self._model.generate(
                self._torch.tensor([ids]), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
            )[0].tolist()
        said = whole[len(ids) :]
        ended = said[-1] == self._tokenizer.eos_token_id
        return self._tokenizer.decode(said, skip_special_tokens=True), ended


@pytest.fixture(scope="session")
def judge(smollm2: Path) -> Judge:
    """Loaded once."""
    return Judge(smollm2)


def install_trouble(folder: Path, flag: Path) -> None:
    """A distribution that vLLM's processes load when ``folder`` is on their path."""
    info = folder / "trouble-1.dist-info"
    info.mkdir(parents=True)
    (folder / "trouble.py").write_text(TROUBLE.format(flag=str(flag), poison=POISON_TOKEN))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trouble\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntrouble = trouble:register\n")


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started; none when it is gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.extend(int(child) for child in task.read_text().split())
        except OSError:
            continue
    return found


def command(pid: int) -> bytes:
    """Its command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
