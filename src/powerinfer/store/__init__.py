"""The user's cache folder and this machine: stored measurements, free memory, cores."""
