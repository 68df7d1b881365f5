"""A hub and caches for tests that run in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from hub_server import Hub, serving
from powerinfer.hub import client

__all__ = ["hub_here", "library_file"]

_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@contextmanager
def hub_here(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process talks to, with empty caches in a folder, and no waiting."""
    for name in (*_NAMES, *map(str.lower, _NAMES)):
        patch.delenv(name, raising=False)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setattr(constants, "HF_HUB_CACHE", str(folder / "huggingface" / "hub"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "huggingface" / "token"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(client, "WAITS_S", (0.0, 0.0, 0.0))
    huggingface_hub.close_session()
    with serving() as hub:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        try:
            yield hub
        finally:
            huggingface_hub.close_session()


def library_file(repository: str, commit: str, path: str, content: bytes, blob: str) -> Path:
    """Put a file into the cache of huggingface_hub, as that library does; its path there."""
    root = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    for name in ("refs", "blobs"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(commit, encoding="ascii")
    (root / "blobs" / blob).write_bytes(content)
    shown = root / "snapshots" / commit / path
    shown.parent.mkdir(parents=True, exist_ok=True)
    shown.symlink_to(root / "blobs" / blob)
    return shown
