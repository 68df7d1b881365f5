"""Which tests coverage watches."""

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from measured import pytest_runtest_protocol


def _tracer(*_event: object) -> None:
    """Traces nothing."""


@pytest.mark.parametrize(
    ("markers", "is_watched"), [((), True), (("slow",), False), (("slow", "measured"), True)]
)
def test_a_slow_test_is_watched_where_it_is_marked(
    markers: tuple[str, ...], is_watched: bool
) -> None:
    item = SimpleNamespace(get_closest_marker=lambda name: name if name in markers else None)
    before = sys.gettrace()
    sys.settrace(_tracer)
    try:
        running = pytest_runtest_protocol(cast("Any", item))
        next(running)
        within = sys.gettrace()
        with suppress(StopIteration):
            running.send(None)
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert (within is _tracer) == is_watched
    assert after is _tracer
