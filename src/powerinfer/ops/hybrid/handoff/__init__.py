"""Hand-off of layers from the GPU to the CPU inside a step, and its cost."""
