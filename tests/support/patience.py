"""How long tests wait for what must come: other programs, threads, answers."""

__all__ = ["PATIENCE_S"]

PATIENCE_S = 120.0
"""Far above what anything takes; only a hang reaches it, far below the limit of a test."""
