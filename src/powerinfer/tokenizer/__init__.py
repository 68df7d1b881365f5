"""Tokenizers built from the vocabulary in a GGUF file, and chat templates."""

import importlib
from typing import TYPE_CHECKING

from powerinfer.tokenizer.pieces import IncrementalDecoder
from powerinfer.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from powerinfer.tokenizer.chat import FALLBACK_TEMPLATE, render_chat

__all__ = ["FALLBACK_TEMPLATE", "IncrementalDecoder", "Tokenizer", "render_chat"]


def __getattr__(name: str) -> object:
    """Import chat templates on first use: Jinja takes a fifth of the start of `run`."""
    if name not in ("FALLBACK_TEMPLATE", "render_chat"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("powerinfer.tokenizer.chat"), name)
