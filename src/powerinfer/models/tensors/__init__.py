"""Tensors of a file: lookup by name, checks, and preparation for a backend."""
