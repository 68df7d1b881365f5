"""Finding per layer which predictor runs and at which threshold; storing and reading it."""
