"""Predictor kinds: one file each, its name is the key; each exports ``KIND``."""
