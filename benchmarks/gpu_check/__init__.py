"""What `scripts/gpu-check` does once the engine is built: three parts, see `__main__.py`."""
