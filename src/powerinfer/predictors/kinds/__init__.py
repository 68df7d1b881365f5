"""Predictor kinds, one file each; the file name is the key, and each file exports ``KIND``."""
