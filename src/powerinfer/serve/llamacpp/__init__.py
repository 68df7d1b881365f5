"""Routes of llama-server's own API."""

from powerinfer.serve.llamacpp.routes import router

__all__ = ["router"]
