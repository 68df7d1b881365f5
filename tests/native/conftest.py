"""Every native test runs on every kernel table of this machine."""

import pytest

from native_cases import KERNELS


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    """Name of a kernel table that this machine runs."""
    return str(request.param)
