"""A Ray cluster of several nodes on this machine, small and quiet, and which of them a worker is on."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 3,
}
"""For nodes that vanish: Ray's own defaults wait for half a minute."""
SMALL = {
    "object_store_memory": 80 * 1024 * 1024,
    "include_dashboard": False,
    "include_log_monitor": False,
}
CPUS = 2


class RayNodes:
    """A head without room for workers, and nodes with CPUS each."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        """For ``--ray``."""
        address: str = self._cluster.address
        return address

    def add(self, count: int = 1) -> None:
        """More nodes; returns when they are there."""
        for _ in range(count):
            self._cluster.add_node(num_cpus=CPUS, wait=False, **SMALL)
        self._cluster.wait_for_nodes(timeout=120)

    def restore(self, count: int = 2) -> None:
        """As many nodes as there were, for the next test."""
        self.add(count - len(self._cluster.worker_nodes))

    def node_of(self, pid: int) -> Any:
        """The node whose raylet started the process."""
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return next(node for node in self._cluster.worker_nodes if raylet(node) == parent)

    def any_node(self) -> Any:
        """One that workers may be on."""
        return next(iter(self._cluster.worker_nodes))

    def workers(self) -> list[int]:
        """Processes in which an actor of ours lives; Ray names them after their class."""
        found = []
        for node in self._cluster.worker_nodes:
            pid = raylet(node)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found.extend(int(child) for child in children if "WorkerActor" in command_of(child))
        return found

    def freeze(self, node: Any) -> list[int]:
        """The machine vanishes: nothing on it moves any more, and no connection breaks. Its processes."""
        raylets = [info.process.pid for infos in node.all_processes.values() for info in infos]
        frozen = [pid for one in raylets for pid in (one, *below(one))]
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return frozen

    def remove(self, node: Any, frozen: list[int]) -> None:
        """What is left of a machine that vanished."""
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kill(node)

    def kill(self, node: Any) -> None:
        """SIGKILL for all of its processes, as if the machine were gone."""
        self._cluster.remove_node(node, allow_graceful=False)


def raylet(node: Any) -> int:
    """The process id of the one that starts a node's workers."""
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def below(pid: int) -> list[int]:
    """Processes that it started, and those that they started."""
    try:
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, started) for one in (child, *below(child))]


def command_of(pid: str) -> str:
    """ "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def ray_nodes(count: int = 2) -> Iterator[RayNodes]:
    """Such a cluster; every process of it is gone at the end."""
    before = {name: os.environ.get(name) for name in (*ENVIRONMENT, "PYTHONPATH")}
    os.environ.update(ENVIRONMENT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before["PYTHONPATH"])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own making
        import ray
        from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": QUICK_TO_NOTICE, **SMALL})
    try:
        nodes = RayNodes(cluster)
        nodes.add(count)
        yield nodes
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
