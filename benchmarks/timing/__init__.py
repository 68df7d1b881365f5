"""Clocks for parts of a step: what `operators.py` is made of."""
