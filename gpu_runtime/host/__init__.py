"""The server's side of a runtime: workers behind the runtime port, or a machine inside the server's own task.

``open_worker`` is for servers of one machine, ``gpu_runtime.cluster`` for those of several;
``open_inline`` hosts a step machine under the caller's clock, for simulations.
"""

from gpu_runtime.host.inline import InlineRuntime, open_inline
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.runtime import WorkerRuntime, open_worker
from gpu_runtime.plugin import ModelUnavailable

__all__ = ["InlineRuntime", "ModelUnavailable", "WorkerOptions", "WorkerRuntime", "open_inline", "open_worker"]
