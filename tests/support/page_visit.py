"""A tab of a browser that shows the page, and what it must not do: complain, or ask others."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

# Whoever imports this skips where it is missing.
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import (
    BrowserContext,
    Locator,
    Page,
    Request,
    Route,
    expect,
)

# Far above what anything here takes: a machine with much to do is no failure.
expect.set_options(timeout=30_000)

__all__ = ["Route", "Visit", "Visitor", "expect"]


@dataclass
class Visit:
    """One tab.

    Attributes:
        context: its browser's profile.
        url: of the page.
        expected: parts of complaints that a test provokes.
        complaints: errors and warnings of the console, and exceptions.
        requests: addresses, in order.
        bodies: of the chats that the page asked for.
    """

    context: BrowserContext
    url: str
    expected: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def open(self) -> Page:
        """Open the page in a new tab, which is the visit's from then on."""
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", self._asked)
        self.page.goto(self.url)
        return self.page

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)
        if request.url.endswith("/v1/chat/completions"):
            self.bodies.append(json.loads(request.post_data or ""))

    def check(self) -> None:
        """No complaint that the test did not expect, and no request to another server."""
        unexpected = [
            text for text in self.complaints if not any(part in text for part in self.expected)
        ]
        assert not unexpected
        assert [url for url in self.requests if not url.startswith(self.url)] == []

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def message(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def questions(self) -> Locator:
        return self.page.get_by_role("article", name="You")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Answer")

    @property
    def chats(self) -> list[str]:
        """Titles in the list, as it is now."""
        return self.page.locator(".chat-title").all_inner_texts()

    def ask(self, text: str) -> Locator:
        """Send a question and wait until its answer is complete."""
        self.message.fill(text)
        self.message.press("Enter")
        return self.complete()

    def complete(self) -> Locator:
        """The last answer, once it is complete."""
        self.page.locator(".answer").last.and_(self.page.locator("[aria-busy=false]")).wait_for()
        return self.answers.last


Visitor: TypeAlias = Callable[..., AbstractContextManager[Visit]]
"""Opens the page at an address; options are those of a browser's context."""
