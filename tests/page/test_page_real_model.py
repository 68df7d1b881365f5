"""The page of a server as users start it, on the model in the package."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from page_visit import Visit, Visitor, expect
from patience import PATIENCE_S

# In CI one story: the rest is what the other files of this folder show without a model.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The page's address, once the model is loaded."""
    command = [sys.executable, "-m", "powerinfer", "serve", "--port", "0", "-t", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        killer = threading.Timer(PATIENCE_S * 3, process.kill)
        killer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                ready = re.search(r"serving \S+ on (http://\S+)", line)
                if ready:
                    # Nobody reads what follows: it must not fill the pipe.
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield f"{ready[1]}/"
                    break
            else:
                pytest.fail("the server did not start")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            killer.cancel()


@pytest.fixture
def visit(visitor: Visitor, url: str) -> Iterator[Visit]:
    with visitor(url) as visit:
        yield visit


def _set(visit: Visit, **values: str) -> None:
    visit.button("Settings").click()
    for label, value in values.items():
        visit.page.get_by_label(label.replace("_", " "), exact=True).fill(value)
    visit.page.keyboard.press("Escape")


def test_a_story(visit: Visit) -> None:
    expect(visit.page.get_by_text("How does the story begin?")).to_be_visible()
    _set(visit, Temperature="0", Longest_answer="40")
    answer = visit.ask("Once upon a time")
    story = answer.locator(".markdown").inner_text()
    assert len(story.split()) > 20
    expect(answer.locator(".figures")).to_contain_text("40 tokens")
    visit.button("Regenerate").click()
    assert visit.complete().locator(".markdown").inner_text() == story


@pytest.mark.thorough
def test_a_seed_draws_the_same_story_again(visit: Visit) -> None:
    _set(visit, Temperature="1.5", Seed="7", Longest_answer="30")
    story = visit.ask("Once upon a time").locator(".markdown").inner_text()
    visit.button("Regenerate").click()
    assert visit.complete().locator(".markdown").inner_text() == story
    _set(visit, Seed="8")
    visit.button("Regenerate").click()
    assert visit.complete().locator(".markdown").inner_text() != story


@pytest.mark.thorough
def test_stop_and_edit(visit: Visit) -> None:
    # A story takes less than a second: the page itself stops it at its first words.
    visit.page.evaluate(
        """() => new MutationObserver((_changes, observer) => {
          if (!document.querySelector(".answer .markdown")?.textContent) return;
          observer.disconnect();
          document.querySelector("[aria-label=Stop]").click();
        }).observe(document.querySelector("#turns"), { childList: true, subtree: true })"""
    )
    expect(visit.ask("Once upon a time")).to_contain_text("You stopped this answer.")
    visit.button("Edit").click()
    _set(visit, Longest_answer="10")
    visit.message.fill("One day a big dog")
    visit.button("Send").click()
    visit.complete()
    expect(visit.questions).to_have_text(["One day a big dog"])
    expect(visit.answers).to_have_count(1)


@pytest.mark.thorough
def test_a_chat_that_is_too_long(visit: Visit) -> None:
    visit.expected.append("status of 400")
    answer = visit.ask("Once upon a time " * 200)
    expect(answer).to_contain_text("longer than the model can read")
    expect(visit.button("Start a new chat")).to_be_visible()


@pytest.mark.thorough
def test_the_live_panel(visit: Visit) -> None:
    visit.button("Live").click()
    _tokens = visit.page.locator(".tile").first
    visit.ask("Once upon a time")
    chart = visit.page.get_by_role("img", name="of a layer's neurons fire")
    expect(chart.locator(".active")).to_have_count(6)
    expect(visit.page.get_by_role("img", name="kept for prompts that begin alike")).to_be_visible()
    expect(_tokens).not_to_contain_text("–")
