"""The interpreters of the oldest Triton versions allowed, with the newest numpy."""

from typing import Any

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from powerinfer.ops.gpu import kernels
from powerinfer.ops.gpu.kernels.matvec import matvec
from powerinfer.ops.gpu.matrix import upload_matrix
from powerinfer.quant import get_format


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Triton's, whose scalars become indices as in Triton 3.4 to 3.6."""
    # Not before our own first import of Triton, which chooses how kernels run.
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def old_patch(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda scalar: int(scalar.handle.data)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", old_patch)
    return interpreter


def run_loop() -> None:
    """A kernel whose loop ends at a number that it was given."""
    encoded = get_format("f32").encode(np.eye(4, 32, dtype=np.float32))
    x = torch.arange(32, dtype=torch.float32)[None, :]
    y = matvec(x, upload_matrix(encoded, "f32", 32, "cpu"))
    assert y.tolist() == [[0, 1, 2, 3]]


@pytest.mark.skipif(not kernels.IS_INTERPRETED, reason="kernels are compiled here")
def test_scalars_are_mended_as_bounds_of_loops(interpreter: Any) -> None:
    # Before 2.4 numpy warned of them, which these tests count as an error.
    with pytest.raises(interpreter.InterpreterError):
        run_loop()
    kernels._mend_interpreter()
    run_loop()
