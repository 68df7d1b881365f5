"""Benchmarks of speed and quality, a description of the machine, and plots."""
