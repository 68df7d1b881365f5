"""Paths of the models with files in the user's cache folder, where names are hashes."""

from collections.abc import Mapping
from pathlib import Path

from powerinfer.errors import PowerInferError
from powerinfer.sidecar import Field, Sidecar

__all__ = ["MODEL", "model_path", "remember_model"]

_LONGEST_PATH = 1 << 12


def remember_model(path: Path, identity: str) -> None:
    """Store the path of a model with files in the cache, as far as possible."""
    if model_path(identity) != path.absolute():
        MODEL.keep(MODEL.cached(identity), path.absolute())


def model_path(identity: str) -> Path | None:
    """Return the last known path of a model with files in the cache, or None."""
    return MODEL.recall(MODEL.cached(identity))


def _encode(path: Path) -> Mapping[str, object]:
    # A path may not be UTF-8, which JSON requires.
    return {"path": str(path).encode("utf-8", "replace").decode()}


def _decode(top: Field) -> Path:
    return Path(top["path"].text(_LONGEST_PATH))


MODEL: Sidecar[Path] = Sidecar(
    noun="model's path",
    suffix=".model.json",
    folder="models",
    version=1,
    largest_bytes=1 << 16,
    error=PowerInferError,
    encode=_encode,
    decode=_decode,
)
"""Path of a model, in the cache under its identity."""
