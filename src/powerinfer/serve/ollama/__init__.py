"""Ollama's API."""

from powerinfer.serve.ollama.routes import router

__all__ = ["router"]
