"""A file's tensors: found by name, checked, and prepared for a backend."""
