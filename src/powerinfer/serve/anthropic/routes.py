"""The routes of this folder."""

from fastapi import APIRouter

from powerinfer.serve.context import ServerContext

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """All routes."""
    return APIRouter()
