"""Conversion of models: checkpoints to files, packing, quantization."""
