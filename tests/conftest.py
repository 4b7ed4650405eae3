"""What holds for every test: time limits, Hypothesis profiles, and an honest account of what was not run.

* An ``async def`` test runs in trio under a mock clock that jumps to the next deadline, so waiting costs nothing
  (tests/virtual_time.py; ``realtime`` tests: the real clock).
* Each run of trio inside a test may take ``VIRTUAL_LIMIT_S`` of its own clock; a deadlock therefore fails at once under
  a mock clock. Each test has a limit of wall time, given by its markers.
  ``@pytest.mark.limit(wall_s=.., virtual_s=..)`` changes both. When all is told the process has ``EXIT_LIMIT_S`` to end.
* ``@pytest.mark.needs("spin", ...)`` names programs or packages that a machine may lack; the tests are then skipped,
  and the summary says how to get them. With ``CI=true`` a skipped test is a failure: CI installs everything.
* Hypothesis: ``HYPOTHESIS_PROFILE=dev`` (quick, the default), ``ci`` (the default with ``CI=true``; the same examples in
  every run), ``soak`` (the hunt for new ones), ``raw`` (failures are shown as they were found, not made small).
"""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from functools import partial, wraps
from types import FrameType
from typing import Any

import hypothesis
import pytest
import trio
import trio.testing

from tests import needs, virtual_time

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
VIRTUAL_LIMIT_S = 3_600.0
WALL_LIMIT_S = 60.0
EXIT_LIMIT_S = 120.0
"""A failed test may leave a thread behind that never ends; the interpreter would wait for it for ever."""
WALL_LIMIT_BY_MARKER_S = {
    "interop": 120.0,
    "crash": 180.0,
    "ray": 240.0,
    "realtime": 240.0,
    "models": 300.0,
    "browser": 300.0,
    "soak": 600.0,
}
IMPLIED_NEEDS = {"browser": ("chromium",), "interop": ("openai",), "models": ("cascade",), "ray": ("ray",)}

_CHECKS_OFF = (hypothesis.HealthCheck.too_slow,)
hypothesis.settings.register_profile("dev", max_examples=60, deadline=None, suppress_health_check=_CHECKS_OFF)
hypothesis.settings.register_profile(
    "ci", max_examples=250, deadline=None, derandomize=True, suppress_health_check=_CHECKS_OFF
)
hypothesis.settings.register_profile(
    "soak", max_examples=10_000, deadline=None, print_blob=True, suppress_health_check=_CHECKS_OFF
)
hypothesis.settings.register_profile(
    "raw",
    max_examples=60,
    deadline=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "dev"))


# --- what a test needs ----------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): programs or packages a machine may lack (tests/needs.py)")
    config.addinivalue_line("markers", "limit(wall_s, virtual_s): time limits other than the usual ones")


def _needs_of(item: pytest.Item) -> list[str]:
    """Everything that ``item`` needs, by its own word or by its markers."""
    names = [name for marker in item.iter_markers("needs") for name in marker.args]
    for marker, implied in IMPLIED_NEEDS.items():
        if item.get_closest_marker(marker):
            names.extend(implied)
    return list(dict.fromkeys(names))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = _needs_of(item)
        unknown = [name for name in names if name not in needs.NEEDS]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} needs {unknown}, which tests/needs.py does not know")
        missing = [name for name in names if not needs.has(name)]
        if missing:
            item.add_marker(pytest.mark.skip(reason=needs.reason(missing)))


# --- limits ---------------------------------------------------------------------------------------------------------


def _limits(item: pytest.Item) -> tuple[float, float]:
    """(wall seconds, seconds of each trio run's own clock) that ``item`` may take. A soak run has ten times as long."""
    wall_s = max(
        (limit_s for marker, limit_s in WALL_LIMIT_BY_MARKER_S.items() if item.get_closest_marker(marker)),
        default=WALL_LIMIT_S,
    )
    virtual_s = VIRTUAL_LIMIT_S
    own = item.get_closest_marker("limit")
    if own is not None:
        wall_s, virtual_s = own.kwargs.get("wall_s", wall_s), own.kwargs.get("virtual_s", virtual_s)
    if os.environ.get("HYPOTHESIS_PROFILE") == "soak":
        wall_s *= 10
    return wall_s, virtual_s


class WallLimitExceeded(BaseException):
    """A test runs longer than it may. Not an Exception, so that no handler in the code under test keeps it."""


_virtual_limit_s = math.inf
"""Of the test that runs."""


def _limit_runs() -> None:
    """Once and for all, so that a test that puts back the ``trio.run`` which it found does not put back its own limit."""
    run = trio.run

    @wraps(run)
    def limited_run(async_fn: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        async def limited() -> Any:
            with trio.fail_after(_virtual_limit_s):
                return await async_fn(*args)

        return run(limited, **options)

    trio.run = limited_run


_limit_runs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    global _virtual_limit_s
    wall_s, _virtual_limit_s = _limits(item)
    fired = False

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal fired
        fired = True
        faulthandler.dump_traceback(file=sys.__stderr__)
        raise WallLimitExceeded

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        _virtual_limit_s = math.inf
        if fired:
            # Whatever the code under test (or trio) made of the interruption, it is an ordinary failure of this test.
            hint = "; Hypothesis may have been shrinking a failure: HYPOTHESIS_PROFILE=raw shows it as it was found"
            is_property = hasattr(getattr(item, "obj", None), "hypothesis")
            pytest.fail(f"took longer than {wall_s:g} s of wall time (stacks on stderr){hint if is_property else ''}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # A thread of the C library's, so it works while the interpreter waits for its own; a clean end takes it along.
    faulthandler.dump_traceback_later(EXIT_LIMIT_S, exit=True, file=sys.__stderr__)


# --- async tests ----------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run ``async def`` tests (``@given`` ones too) in trio."""
    real_clock = pyfuncitem.get_closest_marker("realtime") is not None

    def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run_test(**arguments: Any) -> None:
            run = trio.run if real_clock else virtual_time.run
            run(partial(test, **arguments))

        # pytest follows __wrapped__ to decide what is a coroutine function
        del run_test.__wrapped__  # type: ignore[attr-defined]
        return run_test

    inner = getattr(pyfuncitem.obj, "hypothesis", None)
    if inner is not None and inspect.iscoroutinefunction(inner.inner_test):
        inner.inner_test = in_trio(inner.inner_test)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = in_trio(pyfuncitem.obj)
    return (yield)


# --- the account of what was not run --------------------------------------------------------------------------------


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    skipped = Counter(
        _skip_reason(report).removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")
    )
    deselected = len(terminalreporter.getreports("deselected"))
    terminalreporter.section("what was not run")
    for reason, count in sorted(skipped.items()):
        terminalreporter.line(f"{count:4} skipped: {reason}")
    if deselected:
        terminalreporter.line(f"{deselected:4} left out by this command's own choice (-m, -k)")
    if not skipped and not deselected:
        terminalreporter.line("Nothing: all of the tests asked for were run.")
    if importlib.util.find_spec("vllm") is None:
        terminalreporter.line("Tests over real vLLM are not among them: make test-vllm")
    profile = hypothesis.settings.get_current_profile_name()
    if profile != "soak":
        terminalreporter.line(f"Hypothesis ran its {profile!r} profile; long hunts: make test-full")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if IN_CI and reporter is not None and reporter.getreports("skipped") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("CI=true: a skipped test counts as a failure (see 'what was not run')", red=True)
