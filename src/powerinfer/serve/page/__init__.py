"""The chat page and what it reads."""

from powerinfer.serve.page.routes import router

__all__ = ["router"]
