"""Anthropic's messages API."""

from powerinfer.serve.anthropic.routes import router

__all__ = ["router"]
