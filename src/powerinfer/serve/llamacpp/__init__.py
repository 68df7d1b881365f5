"""What clients of llama-server use beside OpenAI's API."""

from powerinfer.serve.llamacpp.routes import router

__all__ = ["router"]
