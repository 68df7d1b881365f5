"""Every native test runs on every kernel table of this machine."""

from collections.abc import Iterator

import pytest

from native_cases import KERNELS, available
from powerinfer import _core


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a kernel table; the choice before the test comes back after it."""
    name = str(request.param)
    if not available(name):
        pytest.skip(f"this CPU has no {name} kernels")
    before = _core.selected_kernels()
    yield name
    _core.select_kernels(before)
