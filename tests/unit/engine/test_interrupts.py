"""Ctrl-C at any moment leaves the model usable, for the same thread and for others."""

import subprocess
import sys

import pytest

import interrupted_model
from patience import PATIENCE_S


@pytest.mark.usefixtures("unmeasured_programs")
def test_interrupts_at_any_moment_leave_the_model_usable() -> None:
    program = [sys.executable, interrupted_model.__file__]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{interrupted_model.NUM_INTERRUPTS} interrupts")
