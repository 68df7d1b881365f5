"""Pytest plug-in: coverage does not watch slow tests, as that alone makes them twice as slow.

Nearly all that they reach is reached by quick ones, or runs in programs that are measured by
themselves. A slow test that alone reaches something is marked `measured`.
"""

import sys
from collections.abc import Generator

import pytest

__all__ = ["pytest_configure", "pytest_runtest_protocol"]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "measured: coverage watches it, although it is slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hide a test, and what its fixtures set up, from the tracer."""
    if item.get_closest_marker("slow") is None or item.get_closest_marker("measured") is not None:
        return (yield)
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
