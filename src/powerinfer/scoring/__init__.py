"""How likely texts are, and texts as vectors: steps that read and do not write."""
