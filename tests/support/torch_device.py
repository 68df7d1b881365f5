"""Skips for modules that run kernels on torch's device."""

import importlib.util

import pytest

__all__ = ["skip_module_without"]


def skip_module_without(*names: str) -> None:
    """Skip the calling module where a library is missing, before it imports what needs it.

    Nothing is imported here: our own first import of Triton chooses how kernels run.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
