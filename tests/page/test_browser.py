"""The page in Chromium, with a fake microphone, against scripted conversations."""

from __future__ import annotations

import base64
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.page.conftest import QUESTIONS, OpenBrowser, until
from tests.page.fake_server import FakeServer, Stage, Story

pytestmark = pytest.mark.browser

Tell = Callable[[Story], FakeServer]
WORDS = "Once upon a time a small grey cat lived in a house by the sea and it was never late for dinner"
LONG_STORY = " ".join([WORDS] * 8)
"""32 s: however late a busy machine hears of a cut, the answer is still going on."""


class Page:
    """What a user sees and does, by name."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].filter(e => !e.hidden).map(e => e.textContent)"
        return list(self.driver.execute_script(script, selector))

    def click(self, name: str) -> None:
        self.find(f"#{name}").click()

    def press(self, key: str) -> None:
        self.driver.switch_to.active_element.send_keys(key)

    def write(self, text: str) -> None:
        self.find("#message").send_keys(text + "\n")

    @property
    def state(self) -> str:
        return str(self.find("#state").get_attribute("data-state"))

    @property
    def notice(self) -> str:
        element = self.find("#notice")
        return str(element.get_attribute("data-code")) if element.is_displayed() else ""

    def phase(self, number: int = -1) -> str:
        return str(self.driver.find_elements("css selector", ".turn")[number].get_attribute("data-phase"))

    def problems(self) -> list[str]:
        """Errors on the console: exceptions, refused resources, breaches of the content security policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def on_page(open_browser: OpenBrowser) -> Callable[..., Page]:
    return lambda *args, **kwargs: Page(open_browser(*args, **kwargs))


def heard_audio(server: FakeServer) -> np.ndarray[Any, np.dtype[np.int16]]:
    chunks = [base64.b64decode(event["audio"]) for event in server.of_type("input_audio_buffer.append")]
    return np.frombuffer(b"".join(chunks), dtype="<i2")


def test_it_hears_speaks_and_is_cut_by_speech(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        for _ in range(10):
            await stage.wait_for("input_audio_buffer.append")
        await stage.hear("item_u1", "Tell me a short story about a cat.")
        await stage.begin("r1")
        await stage.speak("r1", LONG_STORY)
        while True:
            ack = await stage.wait_for("playback.ack")
            if ack["played_ms"] >= 1_000:
                break
        await stage.listen("item_u2")
        await stage.send({"type": "overlap.decision", "action": "barge_in", "reason": "turn"})
        stage.journal.number += 3
        dead = [[stage.journal.number - 2, stage.journal.number]]
        await stage.finish("r1", "cancelled", "Once upon a time a", skipped=dead)
        await stage.drain()

    server = tell(story)
    page = on_page(server.url)
    page.click("start")
    until(lambda: page.texts(".turn.it .unheard") != [] and page.phase(1) == "cut")

    chunks = server.of_type("input_audio_buffer.append")
    assert {len(base64.b64decode(chunk["audio"])) for chunk in chunks} == {4_800}
    assert np.abs(heard_audio(server)).max() > 1_000, "the microphone's voice went out"
    ids = [event["event_id"] for event in server.received]
    assert len(set(ids)) == len(ids)

    heard, unheard = page.texts(".turn.it .heard, .turn.it .unheard")  # in one look: both still move for a moment
    assert heard + unheard == LONG_STORY
    assert heard.startswith("Once upon a time a")
    assert page.texts(".turn.you .heard")[0] == "Tell me a short story about a cat."
    assert page.find(".turn.it del").value_of_css_property("text-decoration-line") == "line-through"
    acks = [ack["played_ms"] for ack in server.of_type("playback.ack")]
    assert acks == sorted(acks)
    assert 1_000 <= acks[-1] < 30_000, "the player stopped at the cut, and said where"
    assert len(page.texts(".turn")) == 3
    until(lambda: [ack["server_event_seq"] for ack in server.of_type("session.event_ack")][-1] == server.journal.number)
    assert page.problems() == []


def test_an_answer_is_acknowledged_to_its_last_sample(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("response.create")
        await stage.begin("r1")
        await stage.speak("r1", "It has eight legs")
        await stage.finish("r1", "completed", "It has eight legs")
        await stage.drain()

    server = tell(story)
    page = on_page(server.url)
    page.write("How many legs has a spider?")
    until(lambda: [ack for ack in server.of_type("playback.ack") if ack["played_ms"] == 800])
    acks = server.of_type("playback.ack")
    assert {ack["response_id"] for ack in acks} == {"r1"}
    assert len(acks) >= 2
    assert page.phase() == "spoken"
    assert page.texts(".turn .heard") == ["How many legs has a spider?", "It has eight legs"]
    assert page.texts(".turn .unheard") == []
    [item] = [event["item"] for event in server.of_type("conversation.item.create")]
    assert item["content"] == [{"type": "input_text", "text": "How many legs has a spider?"}]
    assert page.texts("#latency")[0].endswith(" s")
    assert server.of_type("input_audio_buffer.append") == [], "typing asks for no microphone"
    assert page.problems() == []


def test_the_interrupt_button_acknowledges_then_cuts(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("response.create")
        await stage.begin("r1")
        await stage.speak("r1", WORDS)
        await stage.wait_for("barge_in")
        await stage.speak("r1", "these words were under way", first_unit=21)
        await stage.finish("r1", "cancelled", "Once upon")
        await stage.drain()

    server = tell(story)
    page = on_page(server.url)
    page.write("Tell me a story")
    until(lambda: len(server.of_type("playback.ack")) >= 3)
    page.press("\ue00c")
    until(lambda: server.of_type("barge_in"))
    until(lambda: page.phase() == "cut")
    order = [event["type"] for event in server.of_type("playback.ack", "barge_in")]
    assert order.index("barge_in") == len(order) - 1, "the last ack goes before the cut, and nothing after it"
    until(lambda: not page.find("#interrupt").is_enabled())
    [heard] = page.texts(".turn.it .heard")
    assert WORDS.startswith(heard.strip())
    assert heard != ""


def test_a_drop_is_resumed_and_no_word_of_the_user_is_lost(tell: Tell, on_page: Callable[..., Page]) -> None:
    resumes: list[dict[str, Any]] = []

    async def story(stage: Stage) -> None:
        if stage.connection == 1:
            await stage.greet()
            for _ in range(12):
                await stage.wait_for("input_audio_buffer.append")
            return
        durable = stage.journal.input_ids[-5]
        resumes.append(await stage.resumed(durable))
        await stage.hear("item_u1", "What is two plus two?")
        await stage.drain()

    server = tell(story)
    page = on_page(server.url)
    page.click("start")
    until(lambda: page.texts(".turn.you .heard") == ["What is two plus two?"])
    assert page.state == "open"
    assert resumes[0]["last_received_server_event_seq"] == 1
    assert resumes[0]["resume_token"] == "token_1"
    until(lambda: len(server.of_type("input_audio_buffer.append")) > 25)
    ids = [int(event["event_id"].rsplit("_", 1)[1]) for event in server.of_type("input_audio_buffer.append")]
    again = next(n for n in range(1, len(ids)) if ids[n] <= ids[n - 1])
    durable_number = ids[11 - 4]
    assert ids[again] == durable_number + 1, "sent again from the first that was not durable"
    assert page.problems() == []


def test_a_conversation_taken_by_another_window_is_left_alone(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("input_audio_buffer.append")
        await stage.send(
            {"type": "session.replaced", "session_id": "session_1", "attachment_generation": 1}, numbered=False
        )
        await stage.socket.aclose(1000, "session_replaced")

    server = tell(story)
    page = on_page(server.url)
    page.click("start")
    until(lambda: page.notice == "replaced")
    assert page.texts("#notice strong") == ["The conversation goes on in another window"]
    assert page.state == "replaced"
    assert server.connections == 1
    assert page.find("#start").text == "Start"


def test_a_blocked_microphone_is_explained_and_typing_still_works(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("response.create")
        await stage.begin("r1")
        await stage.speak("r1", "Four")
        await stage.finish("r1", "completed", "Four")
        await stage.drain()

    server = tell(story)
    page = on_page(server.url, allow=False)
    page.driver.execute_cdp_cmd("Browser.setPermission", {"permission": {"name": "microphone"}, "setting": "denied"})
    page.click("start")
    until(lambda: page.notice == "microphone_denied")
    assert server.connections == 0
    page.write("What is two plus two?")
    until(lambda: page.texts(".turn.it .heard") == ["Four"])
    assert page.notice == ""


def test_a_full_server_and_no_server_say_different_things(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.wait_for("session.update")
        error = {"type": "rate_limit_error", "code": "resource_exhausted", "message": "1 of 1 sessions"}
        await stage.send({"type": "error", "error": error}, numbered=False)

    server = tell(story)
    page = on_page(server.url)
    page.click("start")
    until(lambda: page.notice == "resource_exhausted")
    assert page.state == "failed"
    assert page.texts("#activity") == ["No connection"]
    assert page.texts("#notice button") == ["Try again"]
    server.stop()
    page.find("#notice button").click()
    until(lambda: page.notice == "no_server")
    assert "duologue serve" in page.texts("#notice p")[0]


def test_a_notice_leaves_the_newest_words_in_sight(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("response.create")
        await stage.begin("r1")
        await stage.speak("r1", LONG_STORY)
        await stage.drain()

    below = "const t = document.querySelector('#talk'); return t.scrollHeight - t.scrollTop - t.clientHeight"
    server = tell(story)
    page = on_page(server.url, size=(390, 844))
    page.write("Tell me a story")
    until(lambda: page.texts(".turn.it .coming"))
    until(lambda: page.driver.execute_script(below) <= 1)
    server.stop()
    page.click("start")
    page.click("start")
    until(lambda: page.notice == "no_server")
    until(lambda: page.driver.execute_script(below) <= 1)


def test_the_space_bar_interrupts_and_does_not_write(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.wait_for("response.create")
        await stage.begin("r1")
        await stage.speak("r1", LONG_STORY)
        await stage.wait_for("barge_in")
        await stage.finish("r1", "cancelled", "Once upon")
        await stage.drain()

    server = tell(story)
    page = on_page(server.url)
    page.write("Tell me a story")
    until(lambda: server.of_type("playback.ack"))
    page.press(" ")
    assert page.find("#message").get_attribute("value") == " ", "in the message box it is a space"
    page.driver.execute_script("document.activeElement.blur()")
    page.find("body").send_keys(" ")
    until(lambda: server.of_type("barge_in"))
    until(lambda: page.phase() == "cut")


def test_a_server_that_loads_is_waited_for_and_named(tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await (stage.greet() if stage.connection == 1 else stage.resumed(None))
        await stage.drain()

    server = tell(story)
    server.loading = True
    page = on_page(server.url)
    page.click("start")
    until(lambda: page.texts("#activity") == ["The server is loading its model…"])
    assert page.state == "connecting"
    assert page.notice == ""
    server.loading = False
    until(lambda: page.state == "open")
    server.loading = True
    server.drop()
    until(lambda: page.texts("#activity") == ["The server is loading its model…"])
    assert page.state == "reconnecting"
    server.loading = False
    until(lambda: page.state == "open")
    assert server.of_type("session.resume")


def chatter(path: Path, times: int = 60) -> Path:
    """A microphone into which somebody talks without a pause. (A steady tone would be taken for noise and left out.)"""
    with wave.open(str(QUESTIONS / "kokoro_af_heart_4.wav")) as source:
        parameters, samples = source.getparams(), np.frombuffer(source.readframes(source.getnframes()), "<i2")
    loud = np.flatnonzero(np.abs(samples) > 1_000)
    with wave.open(str(path), "wb") as sink:
        sink.setparams(parameters)
        sink.writeframes(np.tile(samples[loud[0] : loud[-1]], times).tobytes())
    return path


def test_mute_sends_silence_and_the_keyboard_reaches_everything(
    tell: Tell, on_page: Callable[..., Page], tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.drain()

    def newest() -> int:
        """How loud the last second was that arrived."""
        return int(np.abs(heard_audio(server)[-24_000:].astype(int)).max(initial=0))

    server = tell(story)
    page = on_page(server.url, microphone=chatter(tmp_path / "chatter.wav"))
    page.find("#start").send_keys("\n")
    until(lambda: newest() > 1_000)
    page.press("m")
    assert page.find("#mute").get_attribute("data-muted") == "true"
    assert page.find("#mute").text == "Unmute"
    until(lambda: newest() <= 1)
    count = len(server.of_type("input_audio_buffer.append"))
    until(lambda: len(server.of_type("input_audio_buffer.append")) >= count + 8)
    assert np.abs(heard_audio(server)[count * 2_400 :].astype(int)).max() <= 1, (
        "the silence goes on, and so does its clock"
    )
    page.press("m")
    until(lambda: newest() > 1_000)
    page.find("#start").send_keys("\n")
    until(lambda: server.of_type("session.close"))
    until(lambda: page.state == "idle")
    page.write("Hello again")
    until(lambda: page.state == "open")
    page.driver.get("about:blank")
    until(lambda: len(server.of_type("session.close")) == 2)


def test_a_notice_of_no_sound_goes_when_the_sound_comes(tell: Tell, on_page: Callable[..., Page]) -> None:
    """A busy machine starts its sound later than the page waits; the notice stayed although the answer was heard."""

    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.drain()

    page = on_page(tell(story).url)
    page.driver.execute_script(
        """
        window.late = true;
        window.contexts = new Set();
        const { get } = Object.getOwnPropertyDescriptor(BaseAudioContext.prototype, "state");
        const state = { get() { contexts.add(this); return late ? "suspended" : get.call(this); } };
        Object.defineProperty(BaseAudioContext.prototype, "state", state);
        """
    )
    page.click("start")
    until(lambda: page.notice == "no_sound")
    page.driver.execute_script("late = false; contexts.forEach((one) => one.dispatchEvent(new Event('statechange')))")
    assert page.notice == ""


@pytest.mark.parametrize("size", [(360, 640), (360, 480), (1000, 860), (1600, 900)])
def test_nothing_overflows(size: tuple[int, int], tell: Tell, on_page: Callable[..., Page]) -> None:
    async def story(stage: Stage) -> None:
        await stage.greet()
        await stage.hear("item_u1", "A" * 300)
        await stage.begin("r1")
        await stage.speak("r1", WORDS)
        await stage.drain()

    page = on_page(tell(story).url, size=size)
    page.click("start")
    until(lambda: page.texts(".turn.it .coming"))
    measure = (
        "const e = document.documentElement; return [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]"
    )
    assert page.driver.execute_script(measure) == [0, 0]
    inside = """
        const shown = [...document.querySelectorAll("button, input, canvas")].filter(e => e.offsetParent);
        const boxes = shown.map(e => e.getBoundingClientRect());
        return boxes.every(b => b.left >= 0 && b.right <= innerWidth && b.bottom <= innerHeight)
    """
    assert page.driver.execute_script(inside)
