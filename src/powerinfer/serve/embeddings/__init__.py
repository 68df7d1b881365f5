"""OpenAI's embeddings API."""

from powerinfer.serve.embeddings.routes import router

__all__ = ["router"]
