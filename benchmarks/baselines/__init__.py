"""What `scripts/baseline` measures and compares: a module for each section of its file."""
