"""Chromium with a microphone that plays a WAV file."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.fake_server import FakeServer, Story

QUESTIONS = Path(__file__).parents[1] / "data" / "questions"

CHROMIUM = ("chromium", "google-chrome", "chromium-browser")

Browser = Any
OpenBrowser = Callable[..., Browser]


def until(condition: Callable[[], Any], limit_s: float = 40.0) -> Any:
    """Wait until ``condition`` gives something true, and return it; fail after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"nothing after {limit_s:g} s: {getattr(condition, '__name__', condition)}")
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


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether an HTTP GET of ``url`` succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


class LiveServer:
    """``duologue serve`` in a process of its own, on a port and a store that outlive it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "server.log"
        self.port = free_port()
        self.url = f"http://localhost:{self.port}/"
        self.command = [sys.executable, "-m", "adapters.command_line.main", "serve", *options]
        self.command += ["--port", str(self.port), "--store", f"sqlite:///{folder / 'log.sqlite3'}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, cwd=self.log.parent)
        self.process = process
        until(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{self.port}/readyz"), 180)
        assert process.poll() is None, self.log.read_text()[-2_000:]

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        """End it; stopping twice is stopping once."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(45)
            except subprocess.TimeoutExpired:
                self.kill()


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server with the real models, ready to talk."""
    server = LiveServer(tmp_path_factory.mktemp("server"), "--model", "cascade", "--drain-s", "1")
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def scripted_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A real server with the scripted model, whose long answers last minutes; it may be killed and started again."""
    options = ("--model", "scripted", "--model-option", "long_units=300", "--drain-s", "1")
    server = LiveServer(tmp_path, *options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
