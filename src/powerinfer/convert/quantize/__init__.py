"""Quantization of models: file types, mixtures and importance matrices."""
