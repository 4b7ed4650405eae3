"""The page against the real server with the scripted model: the cut by button, and a server killed in mid-answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.bench.own_server import ServerProcess
from tests.page.conftest import OpenBrowser, running, until
from tests.page.test_browser import Page

pytestmark = [pytest.mark.browser, pytest.mark.realtime]


def words_heard(page: Page) -> list[str]:
    return " ".join(page.texts(".turn.it .heard")).split()


def fillers(words: list[str], answer: int) -> list[int]:
    """The numbers of an answer's filling words: ``a1w7`` is the seventh word of the first answer."""
    return [int(word.split("w")[1]) for word in words if re.fullmatch(rf"a{answer}w\d+", word)]


def test_the_button_cuts_and_the_next_answer_comes(scripted_server: ServerProcess, open_browser: OpenBrowser) -> None:
    page = Page(open_browser(scripted_server.http_url, microphone=None))
    page.write("a long story please")
    until(lambda: len(words_heard(page)) >= 8)
    page.click("interrupt")
    until(lambda: page.phase() == "cut")
    heard = words_heard(page)
    assert page.texts(".turn.it .unheard")[0].split()[0] not in heard
    page.write("and now a short one")
    until(lambda: page.phase() == "spoken")
    until(lambda: len(page.texts(".turn.it .heard")) == 2)
    assert len(page.texts(".turn.it .unheard")) == 1
    assert page.notice == ""
    assert page.problems() == []


def test_a_killed_server_is_found_again_and_the_answer_goes_on(
    scripted_server: ServerProcess, open_browser: OpenBrowser
) -> None:
    page = Page(open_browser(scripted_server.http_url, microphone=None))
    page.write("a long story please")
    until(lambda: len(words_heard(page)) >= 8)
    scripted_server.kill()
    until(lambda: page.state == "reconnecting")
    scripted_server.start()
    scripted_server.wait_ready()
    until(lambda: page.state == "open")
    until(lambda: page.phase() in ("broken", "spoken", "cut"))
    # The model died with the server; what was durable is spoken to its end, without a hole and without a repetition.
    numbers = fillers(" ".join(page.texts(".turn.it .said")).split(), 1)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    page.write("are you still there")
    until(lambda: len(page.driver.find_elements("css selector", ".turn.it")) == 2)
    until(lambda: page.phase() == "spoken")
    assert "still there" in page.texts(".turn.it .heard")[-1], "the same conversation, not a new one"
    assert page.texts(".divider") == []


def test_a_key_that_is_asked_for_is_named_and_taken_from_the_address(tmp_path: Path, open_browser: OpenBrowser) -> None:
    """The key in the address was read once, when the page was loaded: one that was added then was never sent."""
    with running(ServerProcess(tmp_path, ("--model", "scripted", "--api-key", "sk-one", "--drain-s", "1"))) as server:
        page = Page(open_browser(server.http_url, microphone=None))
        page.write("hello")
        until(lambda: page.notice == "key_needed")
        page.driver.execute_script("location.hash = 'key=sk-one'")
        page.find("#notice button").click()
        until(lambda: page.state == "open")
        assert page.notice == ""
