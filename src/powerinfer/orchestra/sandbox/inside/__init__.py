"""Programs that set up the sandbox and run in it, started by path with `python -I -S`."""
