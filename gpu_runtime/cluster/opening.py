"""``open_cluster``: the runtime port over workers in a Ray cluster, or what to do when there is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs

from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.runtime import WorkerRuntime, open_workers
from gpu_runtime.plugin import ModelUnavailable, Progress, pip_command


@attrs.frozen
class ClusterOptions:
    """``address``: auto (this machine is a node of a cluster) or HOST:PORT of the cluster's head. ``workers`` None: as
    many as the cluster has room for when the server starts. ``gpus``, ``cpus``: what Ray sets aside for each worker;
    parts are allowed."""

    address: str = "auto"
    workers: int | None = 1
    gpus: float = 0.0
    cpus: float = 1.0

    @property
    def share(self) -> str:
        """What one worker asks for, in words."""
        return f"{self.gpus:g} GPU and {self.cpus:g} CPU" if self.gpus else f"{self.cpus:g} CPU"


@asynccontextmanager
async def open_cluster(
    model: str,
    cluster: ClusterOptions,
    settings: Mapping[str, Any] | None = None,
    on_progress: Progress = lambda stage, fraction: None,
    options: WorkerOptions | None = None,
) -> AsyncGenerator[WorkerRuntime, None]:
    """Have workers for ``model`` in the cluster until the block ends; see ``open_workers``. Raises ModelUnavailable, also
    when there is no cluster, no Ray, or no room in it."""
    try:
        from gpu_runtime.cluster import ray_actors  # an extra, and slow to import
    except ImportError as error:
        get = pip_command("pip install 'duologue[ray]'")
        raise ModelUnavailable(f"workers in a cluster need Ray ({error}); type: {get}") from error
    options = options or WorkerOptions()
    async with (
        ray_actors.open_starters(model, cluster, options) as starters,
        open_workers(model, starters, settings, on_progress, options) as runtime,
    ):
        yield runtime
