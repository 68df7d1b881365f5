"""Calibration: choose predictor and threshold for each layer, store the choice, read it again."""
