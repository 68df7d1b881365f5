"""Make a SwiGLU checkpoint sparse: replace its activation and train it on (arXiv 2406.05955)."""
