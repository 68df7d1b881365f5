"""Opens a model for use: file, backend, weights, tokenizer, placement and KV cache."""
