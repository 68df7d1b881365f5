"""Writes a model with fewer bits per weight: types, mixtures and importance matrices."""
