"""Chromium with a microphone that plays a WAV file."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.bench.own_server import ServerProcess, model_flags
from tests.page.fake_server import FakeServer, Story

QUESTIONS = Path(__file__).parents[1] / "data" / "questions"

CHROMIUM = ("chromium", "google-chrome", "chromium-browser")

PATIENCE_S = 120.0
"""A busy machine takes its time, and a test that passes waits for nothing."""

Browser = Any
OpenBrowser = Callable[..., Browser]


def until(
    condition: Callable[[], Any], limit_s: float = PATIENCE_S, *, seen: Callable[[], object] = lambda: None
) -> Any:
    """Wait until ``condition`` gives something true, and return it; fail after ``limit_s``, with what ``seen`` says."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"nothing after {limit_s:g} s: {getattr(condition, '__name__', condition)}; {seen()}")
        time.sleep(0.03)


def chromium_arguments(profile: Path, microphone: Path | None, *, allow: bool) -> list[str]:
    """Flags for a quiet headless Chromium; ``microphone`` is what its fake microphone plays once."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en"]
    flags += [f"--user-data-dir={profile}", "--use-fake-device-for-media-stream"]
    if allow:
        flags.append("--use-fake-ui-for-media-stream")
    if microphone is not None:
        flags.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    return flags


def start_browser(
    url: str,
    *,
    profile: Path,
    microphone: Path | None,
    allow: bool = True,
    size: tuple[int, int] = (1000, 860),
    dark: bool = False,
) -> Browser:
    """A Selenium driver of a fresh Chromium that shows ``url`` in a window of ``size`` CSS pixels."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, CHROMIUM)), "")
    for flag in chromium_arguments(profile, microphone, allow=allow):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(url)
    return driver


@pytest.fixture
def open_browser(tmp_path: Path) -> Iterator[OpenBrowser]:
    """``open_browser(url, microphone=WAV, allow=True, size=(w, h), dark=False)`` -> a Selenium driver."""
    pytest.importorskip("selenium", reason="selenium is not here: pip install selenium")
    with contextlib.ExitStack() as drivers:

        def start(url: str, **options: Any) -> Browser:
            profile = tmp_path / f"profile_{time.monotonic_ns()}"
            options.setdefault("microphone", QUESTIONS / "kokoro_af_heart_4.wav")
            driver = start_browser(url, profile=profile, **options)
            drivers.callback(driver.quit)
            return driver

        yield start


@pytest.fixture
def tell() -> Iterator[Callable[[Story], FakeServer]]:
    """``tell(story)`` -> a running FakeServer that tells it."""
    with contextlib.ExitStack() as servers:
        yield lambda story: servers.enter_context(FakeServer(story))


@contextlib.contextmanager
def running(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, started and ready; stopped at the end."""
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server with the real models, ready to talk."""
    flags = ("--model", "cascade", "--drain-s", "1")
    with running(ServerProcess(tmp_path_factory.mktemp("server"), flags)) as server:
        yield server.http_url


@pytest.fixture
def scripted_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A real server with the scripted model, whose long answers last minutes; it may be killed and started again."""
    flags = ("--model", "scripted", *model_flags({"long_units": "300"}), "--drain-s", "1")
    with running(ServerProcess(tmp_path, flags)) as server:
        yield server
