"""Which file a model name means: a path, a folder with one GGUF in it, or the embedded model."""

import importlib.resources
import re
from pathlib import Path

from powerinfer.errors import GGUFError

__all__ = ["default_model_path", "find_model"]

_LATER_SPLIT = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


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
            f"this installation has no embedded model (looked in {folder}): "
            "name a model with -m MODEL.gguf"
        )
    return found[0]


def find_model(path: Path | str | None) -> Path:
    """Resolve what the user named to one GGUF file (of a split file the first part).

    Raises:
        GGUFError: nothing is there, or a folder does not hold exactly one model.
    """
    if path is None:
        return default_model_path()
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise GGUFError(f"no model at {path}: there is no such file")
        return path
    names = sorted(file for file in path.glob("*.gguf") if not _is_later_part(file))
    if not names:
        raise GGUFError(f"the folder {path} holds no .gguf file")
    if len(names) > 1:
        listed = ", ".join(file.name for file in names)
        raise GGUFError(f"the folder {path} holds {len(names)} models, name one of them: {listed}")
    return names[0]


def _is_later_part(path: Path) -> bool:
    match = _LATER_SPLIT.search(path.name)
    return match is not None and int(match.group(1)) > 1
