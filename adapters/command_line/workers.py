"""The flags of ``duologue serve`` that say how many workers host the model, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import click

from core.ports.runtime import Runtime
from gpu_runtime.cluster.opening import ClusterOptions, open_cluster
from gpu_runtime.host.runtime import open_worker
from gpu_runtime.plugin import Progress

WORKERS_MAX = 1_024

Command = TypeVar("Command", bound=Callable[..., Any])
OpenRuntime = Callable[[], AbstractAsyncContextManager[Runtime]]


class WorkerCount(click.ParamType[int | None]):
    """A number, or auto (None)."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Raises click.BadParameter."""
        if value == "auto":
            return None
        if str(value).isdecimal() and 1 <= int(value) <= WORKERS_MAX:
            return int(value)
        return self.fail(f"{value!r} is neither a number from 1 to {WORKERS_MAX} nor auto", param, ctx)


def worker_flags(command: Command) -> Command:
    """The flags, in the order of the help page."""
    for flag in reversed(
        (
            click.option(
                "--workers",
                default="1",
                show_default=True,
                type=WorkerCount(),
                metavar="N|auto",
                help="How many workers host the model, each with sessions of its own: processes of this machine, or Ray "
                "actors with --ray. auto: as many as the Ray cluster has room for.",
            ),
            click.option(
                "--ray",
                metavar="ADDRESS",
                help="Have the workers in a Ray cluster: auto if this machine is a node of it (ray start), or HOST:PORT.",
            ),
            click.option(
                "--worker-gpus",
                default=0.0,
                show_default=True,
                type=click.FloatRange(0),
                help="GPUs that Ray sets aside for each worker; 0.5: two of them share one.",
            ),
            click.option(
                "--worker-cpus",
                default=1.0,
                show_default=True,
                type=click.FloatRange(0),
                help="CPUs that Ray sets aside for each worker.",
            ),
        )
    ):
        command = flag(command)
    return command


def runtime_of(flags: Mapping[str, Any], options: Mapping[str, Any], show: Progress) -> OpenRuntime:
    """What ``flags`` ask for, ready to be opened. Raises click.UsageError."""
    count, address = flags["workers"], flags["ray"]
    if address is None:
        if count is None:
            raise click.UsageError("--workers auto counts the places of a Ray cluster: it needs --ray")
        if flags["worker_gpus"] or flags["worker_cpus"] != 1.0:
            raise click.UsageError("--worker-gpus and --worker-cpus are for Ray: they need --ray")
        return partial(open_worker, flags["model"], options, show, workers=count)
    cluster = ClusterOptions(address, count, flags["worker_gpus"], flags["worker_cpus"])
    return partial(open_cluster, flags["model"], cluster, options, show)
