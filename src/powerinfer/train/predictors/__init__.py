"""Trains the predictors of PowerInfer files: two matrices per layer that say what fires."""
