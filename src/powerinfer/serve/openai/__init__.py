"""OpenAI's API."""

from powerinfer.serve.openai.routes import router

__all__ = ["router"]
