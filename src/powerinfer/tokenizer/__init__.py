"""Tokenizers built from the vocabulary in a GGUF file, and chat templates.

Templates are imported from `powerinfer.tokenizer.chat`, late: Jinja takes a fifth of the start of
`run`.
"""

from powerinfer.tokenizer.pieces import IncrementalDecoder
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDecoder", "Tokenizer"]
