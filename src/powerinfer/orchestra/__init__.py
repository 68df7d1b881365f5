"""Orchestra: tasks divided among models and tools, each part done by the cheapest that suffices."""
