"""Models on the Hugging Face Hub: names, listings, what to take of them, downloads, the cache.

::

    from powerinfer.hub import checkpoint_folder, fetch_model

    fetch_model("hf:ORG/NAME:Q4_K_M").path     # a GGUF file
    checkpoint_folder("hf:ORG/NAME")           # a folder for `powerinfer convert`

Nothing but a repository's listing and the files asked for is requested. The `huggingface_hub`
library finds the token, the settings and its own cache; the bytes are fetched here, by ranges, so
that a download that was killed goes on where it ended. Importing this package imports neither.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from powerinfer.hub.fetch import FetchedModel, checkpoint_folder, fetch_model
    from powerinfer.hub.names import Reference, is_reference, parse_reference

__all__ = [
    "FetchedModel",
    "Reference",
    "checkpoint_folder",
    "fetch_model",
    "is_reference",
    "parse_reference",
]

_LAZY = {
    "FetchedModel": "powerinfer.hub.fetch",
    "Reference": "powerinfer.hub.names",
    "checkpoint_folder": "powerinfer.hub.fetch",
    "fetch_model": "powerinfer.hub.fetch",
    "is_reference": "powerinfer.hub.names",
    "parse_reference": "powerinfer.hub.names",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: most commands need none of them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'powerinfer.hub' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
