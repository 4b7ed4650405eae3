"""A stage of the cascade: a few worker threads that share their time fairly among sessions.

Of the jobs that wait, the most urgent kind goes first, and within a kind the sessions take turns. A session has at most
one job running in a stage, so its jobs never overtake each other or run against one another. Background work is told to
stop as soon as urgent work has no thread for itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum

import attrs

from gpu_runtime.models.cascade.parts import Cancel, Cancelled

WAITING_MAX = 1_024
"""Jobs that may wait in one stage, all sessions together."""


class Urgency(IntEnum):
    """In the order in which a stage looks for work."""

    ASKED = 0
    TRIAL = 1
    BACKGROUND = 2


class StageFull(Exception):
    """Too many jobs wait already; this one was not taken."""


@attrs.define(eq=False)
class Job:
    """One piece of work. ``run`` may raise Cancelled; anything else it raises ends the stage."""

    session: str
    run: Callable[[], None]
    cancel: Cancel
    urgency: Urgency


@attrs.frozen
class StageStatistics:
    """Now, and so far."""

    waiting: int
    running: int
    finished: int


class Stage:
    """``threads`` workers over one fair queue."""

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self.name = name
        self._waiting_max = waiting_max
        self._changed = threading.Condition()
        self._lines: dict[Urgency, OrderedDict[str, deque[Job]]] = {kind: OrderedDict() for kind in Urgency}
        self._running: dict[str, Job] = {}
        self._waiting = 0
        self._finished = 0
        self._closed = False
        self.failure: BaseException | None = None
        """What ended the stage, if something did: a fault of ours, for which the process had better end too."""
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, session: str, run: Callable[[], None], cancel: Cancel, urgency: Urgency = Urgency.ASKED) -> None:
        """Queue a job. One that is cancelled before it starts is not run. Raises StageFull."""
        with self._changed:
            if self._waiting >= self._waiting_max:
                raise StageFull(self.name)
            line = self._lines[urgency].setdefault(session, deque())
            line.append(Job(session, run, cancel, urgency))
            self._waiting += 1
            in_the_way = self._in_the_way(session, urgency)
            self._changed.notify()
        for job in in_the_way:
            job.cancel.cancel()

    def promote(self, session: str, cancel: Cancel) -> None:
        """A trial that waits under this flag is asked for now. Nothing happens when it runs already, or is done."""
        with self._changed:
            trials = self._lines[Urgency.TRIAL].get(session, deque())
            job = next((job for job in trials if job.cancel is cancel), None)
            if job is None:
                return
            trials.remove(job)
            if not trials:
                del self._lines[Urgency.TRIAL][session]
            job.urgency = Urgency.ASKED
            self._lines[Urgency.ASKED].setdefault(session, deque()).append(job)
            self._changed.notify()

    def statistics(self) -> StageStatistics:
        """Now."""
        with self._changed:
            return StageStatistics(self._waiting, len(self._running), self._finished)

    def close(self) -> None:
        """Cancel what runs, forget what waits, and wait for the threads."""
        with self._changed:
            self._closed = True
            running = list(self._running.values())
            self._changed.notify_all()
        for job in running:
            job.cancel.cancel()
        for thread in self._threads:
            thread.join()

    def _in_the_way(self, session: str, urgency: Urgency) -> list[Job]:
        """Running background jobs that keep a job of ``session`` from starting."""
        if urgency is Urgency.BACKGROUND:
            return []
        background = [job for job in self._running.values() if job.urgency is Urgency.BACKGROUND]
        if len(self._running) < len(self._threads):
            return [job for job in background if job.session == session]
        return background

    def _take(self) -> Job | None:
        for line in self._lines.values():
            for session in line:
                if session in self._running:
                    continue
                jobs = line[session]
                job = jobs.popleft()
                self._waiting -= 1
                if jobs:
                    line.move_to_end(session)
                else:
                    del line[session]
                return job
        return None

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                try:
                    if not job.cancel.raised:
                        job.run()
                except Cancelled:
                    pass
                finally:
                    self._done(job)
        except BaseException as failure:
            self.failure = failure
            raise

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed:
                job = self._take()
                if job is not None:
                    self._running[job.session] = job
                    return job
                self._changed.wait()
        return None

    def _done(self, job: Job) -> None:
        with self._changed:
            del self._running[job.session]
            self._finished += 1
            self._changed.notify_all()
