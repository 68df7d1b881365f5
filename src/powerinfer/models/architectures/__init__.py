"""Architectures, one file each, named after the value of `general.architecture`."""
