"""A voice's graph on onnxruntime, with a way to stop it in mid-run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpu_runtime.models.cascade.packages import need_module
from gpu_runtime.models.cascade.parts import Cancel, PartFailed, Samples
from gpu_runtime.plugin import ModelUnavailable

INSTALL = "pip install onnxruntime"


class Graph:
    """An ONNX graph whose first output is audio."""

    def __init__(self, path: Path | bytes, threads: int) -> None:
        need_module("onnxruntime", INSTALL)
        import onnxruntime

        self._onnxruntime = onnxruntime
        # onnxruntime's own exceptions have no common root but this one's base
        self._errors = (RuntimeError, ValueError, onnxruntime.capi.onnxruntime_pybind11_state.Fail)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # threads that spin while they wait take the core on which the language model works
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source: str | bytes = path if isinstance(path, bytes) else str(path)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except self._load_errors() as error:
            raise ModelUnavailable(
                f"onnxruntime cannot load {'the voice' if isinstance(path, bytes) else path}: {error}"
            ) from error

    def run(self, inputs: Mapping[str, Any], cancel: Cancel) -> Samples:
        """[samples]. Raises Cancelled within a node's time of ``cancel``, PartFailed."""
        cancel.check()
        options = self._onnxruntime.RunOptions()
        forget = cancel.waking(_terminator(options))
        try:
            audio = self._session.run(None, dict(inputs), run_options=options)[0]
        except self._errors as error:
            cancel.check()
            raise PartFailed("voice_error", f"the voice failed: {error}") from error
        finally:
            forget()
        return np.asarray(audio, np.float32).ravel()

    def _load_errors(self) -> tuple[type[Exception], ...]:
        state = self._onnxruntime.capi.onnxruntime_pybind11_state
        return (*self._errors, state.InvalidProtobuf, state.InvalidGraph, state.NoSuchFile, state.InvalidArgument)


def _terminator(options: Any) -> Callable[[], None]:
    def terminate() -> None:
        options.terminate = True

    return terminate
