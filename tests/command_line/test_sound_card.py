"""`duologue talk --mic` with a sounddevice that is made up."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from adapters.command_line.sound_card import SPEAKER_BYTES_MAX, DeviceSound, NoSoundCard, open_sound_card
from adapters.command_line.talk import talk
from tests.client.fake_server import FakeServer, silence, tone
from tests.command_line.test_talk import running

BLOCK_MS = 40


class Device:
    """A microphone that plays a recording, or a loudspeaker that remembers; each calls back from its own thread."""

    def __init__(self, callback: Callable[..., None], sound: bytes, heard: bytearray | None) -> None:
        self._callback = callback
        self._sound = sound
        self._heard = heard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Device:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        size, at = BLOCK_MS * 48, 0
        while not self._stop.wait(BLOCK_MS / 1_000):
            if self._heard is None:
                self._callback(self._sound[at : at + size].ljust(size, b"\0"), size // 2, None, None)
                at += size
            else:
                out = bytearray(size)
                self._callback(out, size // 2, None, None)
                self._heard += out


def made_up(sound: bytes, heard: bytearray) -> ModuleType:
    module = ModuleType("sounddevice")

    def microphone(*, callback: Callable[..., None], **options: Any) -> Device:
        assert (options["samplerate"], options["channels"], options["dtype"]) == (24_000, 1, "int16")
        return Device(callback, sound, None)

    def loudspeaker(*, callback: Callable[..., None], **options: Any) -> Device:
        return Device(callback, b"", heard)

    module.RawInputStream = microphone  # type: ignore[attr-defined]
    module.RawOutputStream = loudspeaker  # type: ignore[attr-defined]
    module.PortAudioError = type("PortAudioError", (Exception,), {})  # type: ignore[attr-defined]
    return module


@pytest.mark.realtime
def test_a_talk_by_microphone_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = bytearray()
    monkeypatch.setitem(sys.modules, "sounddevice", made_up(tone(500) + silence(5_000), heard))

    def ctrl_c_once_it_was_heard() -> None:
        until = time.monotonic() + 60
        while heard.count(tone(100)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ctrl_c_once_it_was_heard).start()
    with running(FakeServer(answer_ms=6_000)) as url:
        result = CliRunner().invoke(talk, ["--mic", "--url", url])
    assert result.exit_code == 0, result.output
    assert "-- answer 1 begins" in result.output
    assert heard.count(tone(100)) >= 3


async def test_the_loudspeaker_never_lags() -> None:
    sound = DeviceSound()
    sound.play(tone(1_000))
    sound.play(tone(5_000, 300))
    out = bytearray(SPEAKER_BYTES_MAX + 10)
    sound.on_play(out, 0, None, None)
    assert bytes(out) == tone(5_000, 300)[-SPEAKER_BYTES_MAX:] + bytes(10)


async def test_a_microphone_that_nobody_reads_is_bounded() -> None:
    sound = DeviceSound()
    for _ in range(300):
        sound.on_recorded(bytes(2), 1, None, None)
    await trio.testing.wait_all_tasks_blocked()
    assert sound.dropped_chunks == 50
    assert await sound.record() == bytes(2)


async def test_a_sound_card_that_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made_up(b"", bytearray())

    def broken(**options: Any) -> Device:
        raise module.PortAudioError("no device")

    monkeypatch.setattr(module, "RawInputStream", broken)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    with pytest.raises(NoSoundCard, match="no device"), open_sound_card(24_000):
        pass
