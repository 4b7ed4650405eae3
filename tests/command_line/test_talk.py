"""`duologue talk` against the fake server on localhost."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import wave
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from adapters.client.errors import HandshakeRefused
from adapters.client.player import wav_bytes
from adapters.command_line.audio_files import Recording, open_wav
from adapters.command_line.talk import _no_connection, talk
from tests.client.fake_server import FakeServer, MemoryNetwork, serve, silence, tone


@contextmanager
def running(server: FakeServer) -> Iterator[str]:
    """The server in a thread of its own; its URL."""
    ready = threading.Event()
    url: list[str] = []
    scope = trio.CancelScope()
    token: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                url.append(await nursery.start(serve, server))
                ready.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(60)
    try:
        yield url[0]
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join(60)


def spoken(path: Path, pcm: bytes) -> str:
    path.write_bytes(wav_bytes(pcm, 24_000))
    return str(path)


def run_talk(*arguments: str) -> Result:
    return CliRunner().invoke(talk, list(arguments))


@pytest.fixture
def talk_to(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``talk_to(server, *arguments)``: a talk in virtual time and over memory, so that what it measures is the talk's, and
    not the machine's."""

    def invoke(server: FakeServer, *arguments: str) -> Result:
        network = MemoryNetwork(server)

        async def beside_the_server(main: Callable[..., Awaitable[None]], make_client: Any, *rest: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.answer)
                await main(partial(make_client, connect=network.connect), *rest)
                nursery.cancel_scope.cancel()

        run, clock = trio.run, trio.testing.MockClock(autojump_threshold=0)
        monkeypatch.setattr(trio, "run", lambda *main: run(beside_the_server, *main, clock=clock))
        return run_talk(*arguments)

    return invoke


def summary_of(out: Path) -> dict[str, object]:
    return json.loads((out / "summary.json").read_text("utf-8"))


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())


def test_a_question_is_asked_and_its_answer_heard_and_saved(tmp_path: Path, talk_to: Callable[..., Result]) -> None:
    question = spoken(tmp_path / "question.wav", tone(500) + silence(200))
    result = talk_to(FakeServer(answer_ms=1_200), question, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    summary = summary_of(tmp_path / "out")
    (answer,) = summary["answers"]
    assert answer["status"] == "completed"
    assert answer["played_ms"] == answer["received_ms"] == 1_200
    assert answer["underruns"] == 0
    assert answer["transcript"].split() == [f"word{place}" for place in range(12)]
    assert 380 <= answer["latency_ms"] <= 900
    heard = samples_of(tmp_path / "out" / "answer_1.wav")[:, 0]
    assert heard.tobytes() == tone(100) * 12
    both = samples_of(tmp_path / "out" / "conversation.wav")
    assert both.shape[1] == 2
    assert abs(both[: 24_000 // 2, 0].astype(float)).max() > 7_000
    assert abs(both[:, 1].astype(float)).max() > 7_000
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text("utf-8").splitlines()]
    deltas = [line for line in lines if line["type"] == "response.output_audio.delta"]
    assert len(deltas) == 12
    assert all(line["delta"].startswith("<") for line in deltas)
    assert [line["at_ms"] for line in lines] == sorted(line["at_ms"] for line in lines)
    assert "token-" not in (tmp_path / "out" / "events.jsonl").read_text("utf-8")


def test_an_interrupted_answer_is_saved_as_far_as_it_was_heard(tmp_path: Path, talk_to: Callable[..., Result]) -> None:
    server = FakeServer(answer_ms=8_000, later_answers_ms=500, lead=3.0)
    question = spoken(tmp_path / "question.wav", tone(400))
    stop = spoken(tmp_path / "stop.wav", tone(900))
    arguments = (question, "--interrupt", stop, "--after", "0.5", "--out", str(tmp_path / "out"), "--chunk-ms", "100")
    result = talk_to(server, *arguments)
    assert result.exit_code == 0, result.output
    summary = summary_of(tmp_path / "out")
    first, second = summary["answers"]
    assert (first["status"], first["was_cut"]) == ("cancelled", True)
    assert 500 <= first["played_ms"] < 2_000
    assert second["status"] == "completed"
    assert second["played_ms"] == 500
    assert 450 <= summary["barge_in"]["speech_to_silence_ms"] <= 1_000
    assert len(samples_of(tmp_path / "out" / "answer_1.wav")) == pytest.approx(first["played_ms"] * 24, abs=24)


@pytest.mark.realtime
def test_a_file_that_is_gone_when_it_is_to_be_said_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(answer_ms=8_000, later_answers_ms=500, lead=3.0)
    question, stop = (spoken(tmp_path / f"{name}.wav", tone(400)) for name in ("question", "stop"))

    def open_and_lose(path: Path, rate: int) -> Recording:
        found = open_wav(path, rate)
        if path == Path(stop):
            path.unlink()
        return found

    monkeypatch.setattr("adapters.command_line.talk.open_wav", open_and_lose)
    with running(server) as url:
        words = ("--interrupt", stop, "--after", "0.5", "--out", str(tmp_path / "out"), "--url", url)
        result = run_talk(question, *words)
    assert result.exit_code == 4, result.output
    assert "No such file" in result.output
    assert "stop.wav" in result.output
    assert summary_of(tmp_path / "out")["answers"], "what was heard before is kept"


def test_the_answer_to_an_interruption_is_waited_for_however_slow_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talk_to: Callable[..., Result]
) -> None:
    monkeypatch.setattr("adapters.command_line.talk_session.PATIENCE_MS", 100)
    server = FakeServer(answer_ms=8_000, later_answers_ms=300, lead=3.0)
    server.later_wait_s = 1.5
    question = spoken(tmp_path / "question.wav", tone(400))
    stop = spoken(tmp_path / "stop.wav", tone(900))
    result = talk_to(server, question, "--interrupt", stop, "--after", "0.5", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert [answer["status"] for answer in summary_of(tmp_path / "out")["answers"]] == ["cancelled", "completed"]


def test_fast_runs_the_same_talk_in_less_time(tmp_path: Path, talk_to: Callable[..., Result]) -> None:
    question = spoken(tmp_path / "question.wav", tone(3_000))
    result = talk_to(FakeServer(answer_ms=2_000, lead=40.0), question, "--fast", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    summary = summary_of(tmp_path / "out")
    assert summary["answers"][0]["played_ms"] == 2_000
    assert summary["duration_ms"] > 5_000


def test_a_server_that_is_not_there_is_said_to_be_started(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = run_talk(spoken(tmp_path / "q.wav", tone(100)), "--url", f"ws://127.0.0.1:{port}/v1/realtime")
    assert result.exit_code == 1
    assert "make serve" in result.output
    assert "--url" in result.output


@pytest.mark.realtime
def test_a_server_that_is_still_loading_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(answer_ms=200)
    monkeypatch.setattr("adapters.command_line.talk.LOADING_WAIT_S", 0.1)
    server.refusals = [b'{"error": {"code": "loading", "message": "The model is still loading."}}'] * 2
    with running(server) as url:
        result = run_talk("--say", "hello", "--url", url)
    assert result.exit_code == 0, result.output
    assert result.output.count("is loading its model") == 1


def told_of_a_refusal(code: str, message: str, *arguments: str) -> str:
    """A server refuses the session: what ``talk`` says of that."""
    server = FakeServer()
    server.refusals = [json.dumps({"error": {"code": code, "message": message}}).encode()]
    with running(server) as url:
        result = run_talk("--say", "hello", *arguments, "--url", url)
    assert result.exit_code == 1
    return result.output


@pytest.mark.realtime
def test_a_full_server_is_named() -> None:
    said = told_of_a_refusal("resource_exhausted", "All 64 places are taken.")
    assert "All 64 places are taken. Wait for a session to end" in said


@pytest.mark.realtime
def test_a_model_that_is_not_there_is_no_wrong_path() -> None:
    said = told_of_a_refusal("model_not_found", "There is no model 'x' here; there is: y.", "--model", "x")
    assert "there is: y. Name one of these with --model" in said


@pytest.mark.realtime
def test_a_path_that_is_none_is_told_the_usual_one() -> None:
    said = told_of_a_refusal("not_found", "There is no WebSocket at this path.")
    assert "no WebSocket at this path. It is usually /v1/realtime." in said


@pytest.mark.realtime
def test_silence_is_answered_by_nothing_and_that_is_an_error(tmp_path: Path) -> None:
    with running(FakeServer()) as url:
        result = run_talk(spoken(tmp_path / "q.wav", silence(200)), "--url", url, "--timeout", "0.5")
    assert result.exit_code == 3
    assert "no answer within 0.5 s" in result.output
    assert "nothing can be heard in q.wav" in result.output


@pytest.mark.realtime
def test_ctrl_c_before_the_answer_is_heard_is_no_success(tmp_path: Path) -> None:
    """It was reported as 0, which means that all was heard."""
    server = FakeServer(answer_ms=600_000, lead=1.0)

    def press_ctrl_c_once_some_of_it_was_heard() -> None:
        until = time.monotonic() + 30
        while not server.session.played and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with running(server) as url:
        threading.Thread(target=press_ctrl_c_once_some_of_it_was_heard).start()
        result = run_talk("--say", "hello", "--url", url, "--out", str(tmp_path / "out"))
    assert result.exit_code == 4, result.output
    assert "stopped by Ctrl-C before all was said and heard" in result.output
    assert summary_of(tmp_path / "out")["answers"][0]["status"] is None


@pytest.mark.realtime
def test_a_long_question_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.command_line.talk_session.LONG_S", 1)
    with running(FakeServer(answer_ms=300)) as url:
        question = spoken(tmp_path / "lecture.wav", tone(1_000) + silence(1_000))
        result = run_talk(question, "--url", url, "--fast", "--quiet")
    assert result.exit_code == 0, result.output
    assert "-- lecture.wav lasts 0 min 2 s; Ctrl-C ends it" in result.output


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "q.wav is empty"),
        (b"fLaC" + bytes(100), "q.wav is not a WAV file; convert it first: ffmpeg -i"),
        (b"ID3\x04" + bytes(100), "q.wav is not a WAV file; convert it first: ffmpeg -i"),
        (wav_bytes(b"", 24_000), "q.wav has no audio in it"),
        (wav_bytes(tone(100), 24_000)[:30], "q.wav has a broken format header"),
        (wav_bytes(tone(100), 24_000).replace(b"\x01\0\x01\0", b"\x07\0\x01\0", 1), "convert them first: ffmpeg -i"),
    ],
    ids=["empty", "flac", "mp3", "no audio", "cut off", "mu-law"],
)
def test_a_file_that_cannot_be_read_is_wrong_usage(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "q.wav").write_bytes(data)
    result = run_talk(str(tmp_path / "q.wav"))
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.realtime
def test_a_typed_question(tmp_path: Path) -> None:
    with running(FakeServer(answer_ms=300)) as url:
        result = run_talk("--say", "hello", "--url", url)
    assert result.exit_code == 0, result.output
    assert "assistant: word0 word1 word2" in result.output
    assert "completed, heard 0.3 s of 0.3 s" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--say", " "), "--say is empty"),
        (("--say", "hi", "--timeout", "-1"), "--timeout"),
        (("--say", "hi", "--out", "/proc/no/such"), "cannot be made"),
    ],
)
def test_wrong_flags_are_said_in_a_sentence(arguments: tuple[str, ...], says: str) -> None:
    result = run_talk(*arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("status", "given", "says"),
    [
        (401, False, "Give a key with --api-key"),
        (401, True, "is not one of the server's"),
        (403, True, "duologue serve --origin"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, given: bool, says: str) -> None:
    refused = HandshakeRefused("code", "Not you.", status=status)
    assert says in _no_connection(refused, "ws://x/v1/realtime", given).message


@pytest.mark.parametrize("arguments", [[], ["--say", "x", "--mic"]])
def test_one_thing_to_talk_about(arguments: list[str]) -> None:
    result = run_talk(*arguments)
    assert result.exit_code == 2
    assert "one of them" in result.output


def test_a_file_that_is_no_wav(tmp_path: Path) -> None:
    (tmp_path / "q.wav").write_bytes(b"ID3 not a wav")
    result = run_talk(str(tmp_path / "q.wav"))
    assert result.exit_code == 2
    assert "not a WAV file" in result.output


def test_a_url_that_is_none(tmp_path: Path) -> None:
    result = run_talk(spoken(tmp_path / "q.wav", tone(100)), "--url", "localhost:8765")
    assert result.exit_code == 2
    assert "ws://host" in result.output


def test_a_microphone_without_sounddevice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = run_talk("--mic")
    assert result.exit_code == 1
    assert f"{sys.executable} -m pip install sounddevice" in result.output


def test_after_without_an_interruption_is_a_mistake(tmp_path: Path) -> None:
    result = run_talk(spoken(tmp_path / "q.wav", tone(100)), "--after", "2")
    assert result.exit_code == 2
    assert "--interrupt" in result.output
