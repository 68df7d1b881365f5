"""Trains predictors for PowerInfer files: per layer, two matrices that say which neurons fire."""
