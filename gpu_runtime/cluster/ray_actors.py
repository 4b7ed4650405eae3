"""Workers as Ray actors. The only module that imports ray.

Ray finds each actor a node with what it asks for, spreads them, knows them by name, and starts them again, elsewhere if
their node is gone. It ends them with this process, whose they are. So there is nothing here to watch or to restart:
``Place.start`` asks the actor, whichever incarnation it is in, for a new line.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray
import trio
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from gpu_runtime.cluster.actor import LineUnknown, WorkerActor
from gpu_runtime.cluster.line import LineLink, WorkerGone
from gpu_runtime.cluster.opening import ClusterOptions
from gpu_runtime.host.link import Link, NoWorker, Starter
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.plugin import ModelUnavailable, Progress

log = logging.getLogger(__name__)

NAMESPACE = "duologue"
CALLS_MAX = 8
"""Calls that one actor answers at a time: three wait all the while (push, pull, wait), the others are short."""
ASK_AGAIN_S = 0.2
JOIN_TIMEOUT_S = 30.0


@asynccontextmanager
async def open_starters(
    model: str, cluster: ClusterOptions, options: WorkerOptions
) -> AsyncGenerator[list[Starter], None]:
    """Join the cluster and have an actor for each worker, until the block ends. Raises ModelUnavailable."""
    with trio.move_on_after(JOIN_TIMEOUT_S) as joining:
        ours = await trio.to_thread.run_sync(_join, cluster.address, abandon_on_cancel=True)
    if joining.cancelled_caught:  # Ray itself would go on asking for many minutes
        raise _no_cluster(cluster.address, f"nobody has answered for {JOIN_TIMEOUT_S:g} s.")
    places: list[Place] = []
    try:
        room = _room(ray.nodes(), cluster)
        count = room if cluster.workers is None else cluster.workers
        if room < count:
            log.warning("the cluster has room for %d of %d workers (%s each)", room, count, cluster.share)
        places.extend(Place(model, cluster, number, options.load_timeout_s) for number in range(count))
        yield [place.start for place in places]
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_leave, places, ours)


def _join(address: str) -> bool:
    """Whether this call has joined; False: the process was in a cluster already."""
    if ray.is_initialized():
        return False
    if address.startswith("ray://"):
        raise ModelUnavailable(
            f"{address} would pass every sound through Ray's proxy: join the cluster instead with "
            "`ray start --address=HOST:PORT` on this machine, and use --ray auto"
        )
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, str(error).splitlines()[0]) from error
    return True


def _no_cluster(address: str, why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"there is no Ray cluster to join at {address!r}: {why} Start one here with `ray start --head`, or join one with "
        "`ray start --address=HOST:PORT`, and use --ray auto"
    )


def _leave(places: list[Place], joined: bool) -> None:
    for place in places:
        place.end()
    if joined:
        ray.shutdown()


def _room(nodes: list[dict[str, Any]], cluster: ClusterOptions) -> int:
    """How many workers the living nodes could hold if nobody else used them. Raises ModelUnavailable: none."""
    owned = [node["Resources"] for node in nodes if node["Alive"]]
    asked = {"GPU": cluster.gpus, "CPU": cluster.cpus}
    room = sum(
        int(min((has.get(kind, 0.0) / amount for kind, amount in asked.items() if amount), default=1)) for has in owned
    )
    if not room:
        total = ", ".join(f"{sum(has.get(kind, 0.0) for has in owned):g} {kind}" for kind in asked)
        raise ModelUnavailable(
            f"no node of the cluster has {cluster.share} for a worker; in all it has {total} on {len(owned)} nodes. "
            "Add nodes with `ray start --address=HOST:PORT`, or ask for less with --worker-gpus and --worker-cpus"
        )
    return room


class Place:
    """One worker's actor, through all its incarnations."""

    def __init__(self, model: str, cluster: ClusterOptions, number: int, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._class = ray.remote(WorkerActor).options(
            name=f"duologue-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}-{number}",
            num_gpus=cluster.gpus,
            num_cpus=cluster.cpus,
            max_restarts=-1,
            max_concurrency=CALLS_MAX,
            scheduling_strategy="SPREAD",
        )
        self._model = model
        self._actor = self._class.remote(model)

    async def start(self, progress: Progress) -> Link:
        """A new line to the actor, as soon as Ray has it running. Raises NoWorker."""
        line = secrets.token_hex(8)
        progress("waiting for a place in the cluster", 0.0)
        with trio.move_on_after(self._timeout_s):
            while True:
                pid = await self._ask(line)
                if pid is not None:
                    return LineLink(ActorCalls(self._actor, line), pid)
                await trio.sleep(ASK_AGAIN_S)
        raise NoWorker(
            f"the cluster had no place with {self._cluster.share} for {self._timeout_s:g} s; `ray status` shows what is free"
        )

    async def _ask(self, line: str) -> int | None:
        """The process id of the worker that took the line; None: ask again."""
        try:
            pid, machine = await result_of(self._actor.open.remote(line))
        except LineUnknown:  # it still serves a line of ours that broke: that life must end first
            ray.kill(self._actor, no_restart=False)
            return None
        except ActorUnavailableError:
            return None
        except ActorDiedError as error:
            if error.actor_init_failed:
                raise NoWorker(
                    f"a node of the cluster cannot run a worker: {_last_line(error)}; "
                    "each needs the environment of this server, with the same versions of Python, duologue and Ray"
                ) from error
            # Somebody ended it for good. Ray's head must agree to the new one's name, and may be slow: not in the event loop.
            self._actor = await trio.to_thread.run_sync(self._class.remote, self._model)
            return None
        log.info("a worker runs on %s as process %d", machine, pid)
        return int(pid)

    def end(self) -> None:
        """For good."""
        with suppress(RayError):
            ray.kill(self._actor)


class ActorCalls:
    """gpu_runtime.cluster.line.Calls by Ray."""

    def __init__(self, actor: Any, line: str) -> None:
        self._actor = actor
        self._line = line

    async def push(self, data: bytes) -> None:
        """See Calls."""
        await self._call(self._actor.push, data)

    async def pull(self) -> bytes:
        """See Calls."""
        data: bytes = await self._call(self._actor.pull)
        return data

    async def let_go(self) -> None:
        """See Calls."""
        await self._call(self._actor.let_go)

    async def wait(self) -> int:
        """See Calls."""
        status: int = await self._call(self._actor.wait)
        return status

    def kill(self) -> None:
        """See Calls."""
        with suppress(RayError):
            ray.kill(self._actor, no_restart=False)

    async def _call(self, method: Any, *args: Any) -> Any:
        try:
            return await result_of(method.remote(self._line, *args))
        except LineUnknown as error:
            raise WorkerGone("its process was started again") from error
        except RayError as error:
            log.debug("a worker cannot be reached: %s", error)
            text = "its process or its machine is gone" if isinstance(error, RayActorError) else "it cannot be reached"
            raise WorkerGone(text) from error


async def result_of(ref: Any) -> Any:
    """The value of a Ray object, when it is there; no thread waits for it. Raises what its call raised, or RayError."""
    token = trio.lowlevel.current_trio_token()
    done = trio.Event()

    def wake(_future: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    future = ref.future()
    future.add_done_callback(wake)
    await done.wait()
    return future.result()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
