"""The model that comes with the package, and when it is used."""

import importlib.resources
import os
from pathlib import Path

from powerinfer.errors import GGUFError

__all__ = ["default_model_path", "find_model"]


def default_model_path() -> Path:
    """Path of the model that comes with the package.

    Raises:
        GGUFError: this installation has none.
    """
    # Joined step by step: an editable installation has several folders, one of which has the data.
    folder = importlib.resources.files("powerinfer").joinpath("data").joinpath("default")
    items = folder.iterdir() if folder.is_dir() else ()
    found = sorted(Path(str(item)) for item in items if item.name.endswith(".gguf"))
    if not found:
        raise GGUFError(
            f"this installation has no embedded model (looked in {folder})",
            remedy="name the file of a model ({model})",
        )
    return found[0]


def find_model(path: Path | str | None) -> Path:
    """What to open: what the user named (`open_gguf` takes folders too) or the embedded model.

    Raises:
        GGUFError: nothing was named and this installation has no embedded model, or what was
            given is not a path.
    """
    if path is None:
        return default_model_path()
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise GGUFError(
            f"a model is named by the path of a GGUF file or of a folder, got {path!r:.60}; "
            "None takes the embedded model"
        )
    return Path(path)
