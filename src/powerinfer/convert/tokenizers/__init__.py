"""Conversion of a Hugging Face tokenizer to GGUF metadata, and a check of the result."""

from powerinfer.convert.tokenizers.check import check_tokenizer
from powerinfer.convert.tokenizers.read import read_tokenizer

__all__ = ["check_tokenizer", "read_tokenizer"]
