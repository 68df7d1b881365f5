"""How the GPU hands a layer to the CPU inside a step, and how long that takes."""
