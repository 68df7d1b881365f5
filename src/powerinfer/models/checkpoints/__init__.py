"""Configurations of Hugging Face checkpoints, translated to GGUF metadata.

These rules hold for all families; the files in `models/architectures` declare the exceptions.
Nothing here opens a file.
"""
