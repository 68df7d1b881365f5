"""The study behind docs/sparsify/experiment.md: SwiGLU, ReGLU and dReLU at equal tokens."""
