"""Benchmarks: measuring speed and quality, describing the machine, drawing plots."""
