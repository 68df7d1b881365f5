"""Isolation of code that nobody has read: what `execute_python` and `symbolic_math` run in.

`isolation.py` is the way in. Files in `inside/` are programs of their own: they run in the sandbox,
with Python's standard library alone.
"""
