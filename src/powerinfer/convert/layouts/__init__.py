"""Layouts that `powerinfer pack` writes: file name = value of `--layout`, exporting ``LAYOUT``."""
