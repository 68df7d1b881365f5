"""Tests that train run torch on one thread."""

from one_torch_thread import one_torch_thread

__all__ = ["one_torch_thread"]
