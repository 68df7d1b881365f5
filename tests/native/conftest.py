"""Every native test runs on every kernel table of this machine."""

import pytest

from native_cases import KERNELS, available


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    """Name of a kernel table that this machine runs."""
    name = str(request.param)
    if not available(name):
        pytest.skip(f"this CPU has no {name} kernels")
    return name
