"""Tests that train run torch on one thread."""

from collections.abc import Iterator

import pytest

from one_torch_thread import one_torch_thread
from powerinfer.offload import devices

__all__ = ["one_torch_thread"]


@pytest.fixture(autouse=True, scope="module")
def triton_interpreted() -> Iterator[None]:
    """Choose Triton's interpreter where there is no GPU.

    Torch's optimizers import Triton, which reads the choice once; tests of kernels that follow in
    the same process need it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not devices.has_driver():
            patch.setenv("TRITON_INTERPRET", "1")
        yield
