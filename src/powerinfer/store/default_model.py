"""Which model is meant: the one that comes with the package, or what the user named."""

import importlib.resources
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from powerinfer.errors import GGUFError
from powerinfer.hub.names import is_reference

__all__ = [
    "WHERE_MODELS_COME_FROM",
    "check_is_no_address",
    "default_model_path",
    "find_model",
    "is_on_hub",
    "story_text",
]

WHERE_MODELS_COME_FROM = (
    "powerinfer fetches models of huggingface.co, named hf:ORG/NAME[:QUANT]; download others "
    "yourself"
)
_SCHEMES_WITHOUT_SLASHES = ("ollama", "file")
# Ollama takes addresses that begin so.
_HOSTS = ("hf.co", "huggingface.co", "ollama.com", "registry.ollama.ai", "modelscope.cn")


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


def story_text(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation as the embedded model can go on with it: one story by turns.

    It has learned stories only, and a dialogue of `User:` and `Assistant:` makes it babble.
    """
    text = ""
    for message in messages:
        content = message["content"]
        # A new turn of the user begins a paragraph; an answer goes on with the user's sentence.
        between = "\n" if message["role"] == "user" else " " if content[:1].isalnum() else ""
        text += between + content if text else content
    return text


def find_model(
    path: Path | str | None, downloading: Callable[[int, int], None] | None = None
) -> Path:
    """What to open: what the user named (`open_gguf` takes folders too) or the embedded model.

    A model on the Hugging Face Hub, `hf:ORG/NAME[:QUANT][@REVISION]`, is fetched if it is not here.

    Args:
        path: what the user named; None for the embedded model.
        downloading: told (bytes that are there, bytes in all) while one is fetched.

    Raises:
        HubError: a model on the Hub is named that cannot be fetched.
        GGUFError: nothing was named and this installation has no embedded model, or what was
            given is an address, a bare name that no file has, or no path at all.
    """
    if path is None:
        return default_model_path()
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise GGUFError(
            f"a model is named by the path of a GGUF file or of a folder, got {path!r:.60}; "
            "None takes the embedded model"
        )
    name = os.fspath(path)
    if is_on_hub(name):
        from powerinfer.hub.fetch import fetch_model

        # On Windows a `Path` turns the slashes of a reference round.
        return fetch_model(name.replace(os.sep, "/"), progress=downloading).path
    check_is_no_address(name)
    if not os.path.lexists(name) and not _looks_like_path(name):
        raise GGUFError(f"{name[:200]}: no such file or folder", remedy=_REMEDY)
    return Path(path)


_REMEDY = f"{WHERE_MODELS_COME_FROM}, and name its path ({{model}})"


def is_on_hub(name: str) -> bool:
    """Whether a name means a model on the Hub: it begins with `hf:`, and no file is called so."""
    return is_reference(name) and not os.path.lexists(name)


def check_is_no_address(name: str) -> None:
    """Refuse what names a model on the net.

    Raises:
        GGUFError: it does, and no file has that name.
    """
    # Without a regular expression, which would take a noticeable part of a start to compile.
    scheme, _, rest = name.partition(":")
    # `Path` makes one slash of two, and one letter before the colon is a drive of Windows.
    is_address = rest.startswith("/") and len(scheme) > 1 and scheme.isalnum()
    is_address = is_address or (bool(rest) and scheme.lower() in _SCHEMES_WITHOUT_SLASHES)
    is_address = is_address or name.lower().startswith(tuple(f"{host}/" for host in _HOSTS))
    if is_address and not os.path.lexists(name):
        raise GGUFError(f"{name[:200]}: an address, not a file", remedy=_REMEDY)


def _looks_like_path(name: str) -> bool:
    """Whether a name that no file has was meant as a path: not `llama3`, not `ORG/NAME`."""
    folder, file = os.path.split(name)
    is_bare = folder == "" or (os.path.split(folder)[0] == "" and not Path(folder).exists())
    return not is_bare or name.startswith((".", "~")) or file.lower().endswith(".gguf")
