"""Drives a headless Firefox over WebDriver BiDi, which it speaks itself: no geckodriver is needed.

Firefox starts no audio graph without a sound device, so a PulseAudio of its own gives it one that leads nowhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("firefox-esr", "firefox")
PREFERENCES = {
    "app.update.disabledForTesting": True,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "media.autoplay.default": 0,
    "media.autoplay.blocking_policy": 0,
    "media.navigator.permission.disabled": True,
    "media.navigator.streams.fake": True,
    "network.captive-portal-service.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}
ANSWER_LIMIT_S = 200
"""Beside ten busy programs Firefox took more than a minute for its first answers; one that hangs is found all the same."""
START_LIMIT_S = 100
END_LIMIT_S = 10


def program() -> str | None:
    """The Firefox of this machine, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def is_here() -> bool:
    """Whether this machine can run Firefox with sound."""
    return program() is not None and shutil.which("pulseaudio") is not None


class SilentSound:
    """A PulseAudio whose only device swallows what is played. ``environment`` makes a program use it."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="sound")
        socket = Path(self.folder.name) / "native"
        own = {"PULSE_RUNTIME_PATH": self.folder.name, "HOME": self.folder.name}
        command = ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--disable-shm=1"]
        command += ["--load=module-null-sink", f"--load=module-native-protocol-unix auth-anonymous=1 socket={socket}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env={**os.environ, **own}, stdout=quiet, stderr=quiet)
        self.environment = {"PULSE_SERVER": f"unix:{socket}"}
        deadline = time.monotonic() + START_LIMIT_S
        while not socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("pulseaudio does not start")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process and remove its folder."""
        end(self.process)
        self.folder.cleanup()


def end(process: subprocess.Popen[Any]) -> None:
    """Ask the process to end; one that is still at it after END_LIMIT_S is killed: its end is no part of any test."""
    process.terminate()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Firefox:
    """A fresh Firefox with a fake microphone (a tone). Use as a context manager."""

    def __init__(self, profile: Path) -> None:
        profile.mkdir(parents=True)
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
        (profile / "user.js").write_text("\n".join(lines) + "\n")
        self.profile = profile
        self.count = 0

    def __enter__(self) -> Self:
        import websocket

        self.sound = SilentSound()
        command = [program() or "firefox", "--headless", "--no-remote", "--remote-debugging-port", "0"]
        # A file and no pipe: nobody reads on once the address is known, and a full pipe would stop Firefox.
        self.log = self.profile / "stderr.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--profile", str(self.profile)],
                stderr=log,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **self.sound.environment},
            )
        try:
            self.socket = websocket.create_connection(
                self._address() + "/session", timeout=ANSWER_LIMIT_S, suppress_origin=True
            )
            self.call("session.new", capabilities={})
            self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self._end()
            raise
        return self

    def _end(self) -> None:
        end(self.process)
        self.sound.stop()

    def _address(self) -> str:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            found = re.search(r"WebDriver BiDi listening on (ws://\S+)\n", self.log.read_text("utf-8", "replace"))
            if found:
                return found[1]
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Firefox does not listen: {self.log.read_text('utf-8', 'replace')[-2_000:]}")
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        self._end()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result. Raises RuntimeError when Firefox answers with an error."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") != self.count:
                continue
            if answer["type"] == "error":
                raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
            result: dict[str, Any] = answer["result"]
            return result

    def open(self, url: str) -> None:
        """Show ``url`` and wait until it is loaded."""
        self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The JSON value of ``expression`` in the page; counts as done by the user."""
        answer = self.call(
            "script.evaluate",
            expression=f"JSON.stringify({expression} ?? null)",
            target={"context": self.context},
            awaitPromise=False,
            userActivation=True,
        )
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"]["value"])

    def screenshot(self, size: tuple[int, int]) -> str:
        """The page as a base64 PNG at ``size`` CSS pixels."""
        viewport = {"width": size[0], "height": size[1]}
        self.call("browsingContext.setViewport", context=self.context, viewport=viewport)
        return str(self.call("browsingContext.captureScreenshot", context=self.context)["data"])
