"""The limits and the account of what was not run, tried on small suites of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
[pytest]
pythonpath = .
addopts = --import-mode=importlib --strict-markers -p no:cacheprovider
filterwarnings = error
markers =
    browser: needs Chromium
    realtime: takes as long as the speech it plays
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A fresh folder with this repository's conftest.py and none of its tests."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    tests = pytester.mkdir("tests")
    for name in ("conftest.py", "needs.py", "virtual_time.py"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    (pytester.path / "pytest.ini").write_text(SETTINGS)
    return pytester


def run(suite: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    (suite.path / "tests" / "test_it.py").write_text("import time\nimport pytest\nimport trio\n" + source)
    return suite.runpytest_subprocess("tests", *arguments, timeout=60)


def test_an_async_test_runs_in_virtual_time(suite: pytest.Pytester) -> None:
    result = run(suite, "async def test_an_hour():\n    await trio.sleep(3000)\n    assert trio.current_time() > 0\n")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*what was not run*", "Nothing: all of the tests asked for were run."])


def test_the_virtual_clock_stands_while_a_thread_works(suite: pytest.Pytester) -> None:
    source = (
        "async def test_it():\n"
        "    with trio.move_on_after(1) as scope:\n"
        "        await trio.to_thread.run_sync(time.sleep, 0.2)\n"
        "    assert not scope.cancelled_caught and trio.current_time() == 0\n"
        "    await trio.sleep(1)\n"
        "    assert trio.current_time() == 1\n"
    )
    run(suite, source).assert_outcomes(passed=1)


def test_an_async_test_that_asserts_wrongly_fails(suite: pytest.Pytester) -> None:
    run(suite, "async def test_it():\n    await trio.sleep(1)\n    assert False\n").assert_outcomes(failed=1)


def test_async_tests_may_be_given_examples(suite: pytest.Pytester) -> None:
    source = (
        "from hypothesis import given, strategies as st\n"
        "@given(n=st.integers())\n"
        "async def test_it(n):\n    await trio.sleep(1)\n    assert n < 1000\n"
    )
    result = run(suite, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*n=1000*"])


def test_a_deadlock_fails_at_once_under_the_mock_clock(suite: pytest.Pytester) -> None:
    result = run(suite, "async def test_it():\n    await trio.Event().wait()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TooSlowError*"])


def test_a_test_that_patches_the_run_leaves_no_limit_to_the_next_one(suite: pytest.Pytester) -> None:
    source = (
        "def test_patches(monkeypatch):\n"
        "    monkeypatch.setattr(trio, 'run', None)\n"
        "@pytest.mark.limit(virtual_s=20_000)\n"
        "async def test_five_hours():\n"
        "    await trio.sleep(18_000)\n"
        "async def test_too_long():\n"
        "    await trio.sleep(18_000)\n"
    )
    result = run(suite, source)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAILED *test_too_long*"])


def test_a_thread_that_never_ends_does_not_keep_the_process(suite: pytest.Pytester) -> None:
    conftest = suite.path / "tests" / "conftest.py"
    quick = conftest.read_text().replace("EXIT_LIMIT_S = 120.0", "EXIT_LIMIT_S = 0.5")
    assert "EXIT_LIMIT_S = 0.5" in quick
    conftest.write_text(quick)
    result = run(
        suite, "import threading\ndef test_it():\n    threading.Thread(target=threading.Event().wait).start()\n"
    )
    result.assert_outcomes(passed=1)
    assert result.ret == 1, "a process that must be ended is a failure, whatever its tests were"
    result.stderr.fnmatch_lines(["*Timeout*", "*Thread*"])


def test_wall_time_is_limited_whatever_the_code_catches(suite: pytest.Pytester) -> None:
    source = (
        "@pytest.mark.limit(wall_s=0.3)\n"
        "def test_it():\n"
        "    while True:\n"
        "        try:\n            time.sleep(5)\n"
        "        except Exception:\n            pass\n"
        "def test_the_next():\n    pass\n"
    )
    result = run(suite, source)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*took longer than 0.3 s of wall time*"])


def test_what_the_machine_lacks_is_said_with_how_to_get_it(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "@pytest.mark.browser\ndef test_page(): pass\n@pytest.mark.needs('spin')\ndef test_model(): pass\n"
    only_python = Path(suite.path / "bin")
    only_python.mkdir()
    monkeypatch.setenv("PATH", str(only_python))
    result = run(suite, source)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        [
            "*1 skipped: chromium is not here: apt-get install chromium chromium-driver",
            "*1 skipped: spin is not here: apt-get install spin gcc",
        ]
    )
    assert result.ret == 0

    monkeypatch.setenv("CI", "true")
    in_ci = run(suite, source)
    assert in_ci.ret == 1, "CI installs everything, so a skip there is a failure"


def test_a_need_that_nobody_can_explain_is_refused(suite: pytest.Pytester) -> None:
    result = run(suite, "@pytest.mark.needs('luck')\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs*luck*tests/needs.py*"])
