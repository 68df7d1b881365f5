"""Text to token ids and back from GGUF metadata; chat templates."""

from powerinfer.tokenizer.chat import FALLBACK_TEMPLATE, render_chat
from powerinfer.tokenizer.stream import IncrementalDecoder
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["FALLBACK_TEMPLATE", "IncrementalDecoder", "Tokenizer", "render_chat"]
