"""OpenAI's responses API."""

from powerinfer.serve.responses.routes import router

__all__ = ["router"]
