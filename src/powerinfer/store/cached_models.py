"""Which models the files in the user's cache folder are for: their names there are hashes."""

from collections.abc import Mapping
from pathlib import Path

from powerinfer.errors import PowerInferError
from powerinfer.sidecar import Field, Sidecar

__all__ = ["MODEL", "model_path", "remember_model"]

_LONGEST_PATH = 1 << 12


def remember_model(path: Path, identity: str) -> None:
    """Note where a model lies of which something is in the cache; where that fails, it is not.

    Args:
        path: of its file.
        identity: `gguf.model_identity` of it.
    """
    if model_path(identity) != path.absolute():
        MODEL.keep(MODEL.cached(identity), path.absolute())


def model_path(identity: str) -> Path | None:
    """Where a model lay when something of it was last written into the cache; None if unknown."""
    return MODEL.recall(MODEL.cached(identity))


def _encode(path: Path) -> Mapping[str, object]:
    # Of a name that is no UTF-8, JSON keeps what it can.
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
"""The path of a model, in the cache under its identity."""
