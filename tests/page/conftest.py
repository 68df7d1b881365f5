"""A browser, a server that plays a script, and a visit to its page that must leave no complaint."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from page_server import PageServer, page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

    from page_visit import Visit, Visitor


# Not of the session: while Playwright runs, this thread has an event loop, and tests of other
# modules start theirs.
@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Debian's Chromium: nothing is downloaded for the tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        # Root, which runs CI, has no sandbox.
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running_server() -> Iterator[PageServer]:
    with page_server() as server:
        yield server


@pytest.fixture
def server(running_server: PageServer) -> PageServer:
    """The server of this module, with the script that it begins with."""
    running_server.play(("Hello", " there."))
    running_server.fake.submitted.clear()
    running_server.fake.gate.set()
    return running_server


class _Profile:
    """A profile that keeps the files of the page, which takes half of each visit to load."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._context: BrowserContext | None = None

    @contextmanager
    def lent(self, url: str) -> "Iterator[BrowserContext]":
        """The profile, in which nothing is left of earlier visits; `url` is the page's."""
        context = self._context or new_context(self._browser)
        # After a failure the next visit gets a new one.
        self._context = None
        try:
            yield context
        except BaseException:
            context.close()
            raise
        for page in context.pages:
            page.close()
        context.clear_cookies()
        context.clear_permissions()
        # From a document of the server that is not the page, which might write once more.
        page = context.new_page()
        page.goto(f"{url}health")
        page.evaluate("localStorage.clear()")
        page.close()
        self._context = context


def new_context(browser: "Browser", **options: Any) -> "BrowserContext":
    """A profile of its own; options are those of a browser's context."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(60_000)
    return context


@pytest.fixture(scope="module")
def profile(browser: "Browser") -> _Profile:
    return _Profile(browser)


@pytest.fixture
def visitor(browser: "Browser", profile: _Profile) -> "Visitor":
    """Opens pages; each visit begins with an empty storage."""
    from page_visit import Visit

    @contextmanager
    def visits(url: str, **options: Any) -> Iterator[Visit]:
        own = closing(new_context(browser, **options)) if options else profile.lent(url)
        with own as context:
            visit = Visit(context, url)
            visit.open()
            yield visit
            visit.check()

    return visits


@pytest.fixture
def visit(visitor: "Visitor", server: PageServer) -> "Iterator[Visit]":
    """A page on a desk that was just opened."""
    with visitor(server.url) as visit:
        yield visit
