"""The chat page and its data."""

from powerinfer.serve.page.routes import router

__all__ = ["router"]
