"""Which worker holds which session. Pure: no clock, no I/O.

A session stays where it is placed until it leaves or its worker is lost. A new one goes to the worker with the smallest
part of its room taken. One that finds no room waits; whoever lost a worker waits before those who never had one.

When all workers died together, the first one that is back would get all of those who wait, and keep them. So for as long as
the others are expected back, it is given its share only; whoever drives this ends that with ``expect_no_more``.
"""

from __future__ import annotations

from fractions import Fraction

import attrs


@attrs.define
class _Seat:
    """One worker: ``room`` 0 while it is down."""

    room: int = 0
    held: int = 0
    expected: bool = False
    """Down like all others, and about to be up again."""

    @property
    def taken(self) -> Fraction:
        return Fraction(self.held, self.room)


class Placement:
    """Workers are numbered from 0. Invariants: no worker holds more than its room; nobody waits while there is room, no
    worker is expected, and ``place_waiting`` was called."""

    def __init__(self, workers: int) -> None:
        self._seats = [_Seat() for _ in range(workers)]
        self._worker_of: dict[str, int] = {}
        self._waiting: dict[str, None] = {}

    @property
    def waiting(self) -> int:
        """Sessions that no worker holds."""
        return len(self._waiting)

    def held(self, worker: int) -> int:
        """Sessions on ``worker``."""
        return self._seats[worker].held

    def worker_of(self, session: str) -> int | None:
        """None: it waits, or is not known."""
        return self._worker_of.get(session)

    def add(self, session: str) -> int | None:
        """A session comes; where it was placed. None: it waits. One that is known stays as it is."""
        if session not in self._worker_of and session not in self._waiting:
            behind = bool(self._waiting)
            self._waiting[session] = None
            if not behind:
                self._place(session)
        return self._worker_of.get(session)

    def remove(self, session: str) -> None:
        """It leaves. Unknown ones are passed over."""
        self._waiting.pop(session, None)
        worker = self._worker_of.pop(session, None)
        if worker is not None:
            self._seats[worker].held -= 1

    def gain(self, worker: int, room: int) -> None:
        """``worker`` is up, empty, and may hold ``room`` sessions."""
        assert not self._seats[worker].held
        self._seats[worker] = _Seat(room)

    def lose(self, worker: int) -> list[str]:
        """``worker`` is down. Those whom it held, in the order in which they came; they are not known any more until
        ``wait`` is called for each."""
        lost = [session for session, holder in self._worker_of.items() if holder == worker]
        for session in lost:
            del self._worker_of[session]
        self._seats[worker] = _Seat()
        if not any(seat.room for seat in self._seats):
            for seat in self._seats:
                seat.expected = True
        return lost

    @property
    def expecting(self) -> bool:
        """Whether somebody waits for a worker that is expected, although another has room."""
        return bool(self._waiting) and any(seat.expected for seat in self._seats) and bool(self._free())

    def expect_no_more(self) -> None:
        """Who is not back by now may take long: the others get all of those who wait."""
        for seat in self._seats:
            seat.expected = False

    def wait(self, sessions: list[str]) -> None:
        """They lost their worker, and come before all others who wait."""
        known = self._worker_of.keys() | self._waiting.keys()
        self._waiting = {**{session: None for session in sessions if session not in known}, **self._waiting}

    def place_waiting(self) -> list[tuple[str, int]]:
        """Who got a place now, and where."""
        placed = []
        for session in list(self._waiting):
            worker = self._place(session)
            if worker is None:
                break
            placed.append((session, worker))
        return placed

    def _place(self, session: str) -> int | None:
        share = self._share()
        free = [number for number in self._free() if self._seats[number].held < share]
        if not free:
            return None
        worker = min(free, key=lambda number: self._seats[number].taken)
        self._seats[worker].held += 1
        self._worker_of[session] = worker
        del self._waiting[session]
        return worker

    def _free(self) -> list[int]:
        return [number for number, seat in enumerate(self._seats) if seat.held < seat.room]

    def _share(self) -> int:
        """What each may hold: while workers are expected, an even part of all sessions; else no matter how many."""
        sessions = len(self._worker_of) + len(self._waiting)
        if not any(seat.expected for seat in self._seats):
            return sessions
        workers = sum(seat.expected or seat.room > 0 for seat in self._seats)
        return -(-sessions // workers)
