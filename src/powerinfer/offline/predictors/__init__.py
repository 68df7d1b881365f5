"""Trains the predictors of PowerInfer's files: per layer, two matrices that say which neurons fire."""
