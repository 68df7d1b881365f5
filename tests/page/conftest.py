"""A browser, a server that plays a script, and a visit to its page that must leave no complaint."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from page_server import PageServer, page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@pytest.fixture
def visitor(browser: "Browser") -> "Visitor":
    """Opens pages; each visit has a storage of its own."""
    from page_visit import Visit

    @contextmanager
    def visits(url: str, **options: Any) -> Iterator[Visit]:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(60_000)
        try:
            visit = Visit(context, url)
            visit.open()
            yield visit
            visit.check()
        finally:
            context.close()

    return visits


@pytest.fixture
def visit(visitor: "Visitor", server: PageServer) -> "Iterator[Visit]":
    """A page on a desk that was just opened."""
    with visitor(server.url) as visit:
        yield visit
