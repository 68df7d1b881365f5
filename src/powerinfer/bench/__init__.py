"""Benchmarks: what to run, on what machine it ran, and how it is reported."""
