"""Conversion of models: checkpoints to files, packing, quantization.

The errors of all functions are those that `convert`, `pack`, `pack_with_predictors`, `quantize` and
`read_tokenizer` list. They name the file, and the tensor if there is one.
"""
