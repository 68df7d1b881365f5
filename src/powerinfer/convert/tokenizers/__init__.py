"""The tokenizer of a Hugging Face checkpoint as metadata of a GGUF file, and a check of both."""

from powerinfer.convert.tokenizers.check import check_tokenizer
from powerinfer.convert.tokenizers.read import read_tokenizer

__all__ = ["check_tokenizer", "read_tokenizer"]
