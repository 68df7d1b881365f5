"""The page's files with their HTTP headers: types, caching and security policy."""

import hashlib
import html
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from powerinfer.serve.settings import ServerSettings

__all__ = ["PageFile", "PageFiles"]

_FOLDER = Path(__file__).resolve().parent / "static"

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix of the served files; licences and notes are not served."""

# The page runs its own scripts and talks to its own server. Model output reaches the document
# through DOMPurify, whose policy alone may turn text into HTML.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# Their addresses change with their contents.
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_ASK_AGAIN = {"Cache-Control": "no-cache"}

# Fields of a request that the page offers with their defaults.
_SHOWN_DEFAULTS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)

_CHATS = {
    "heading": "What would you like to know?",
    "invitation": "The model runs on this server. What you write goes nowhere else.",
    "placeholder": "Ask anything",
}
_STORIES = {
    "heading": "How does the story begin?",
    "invitation": "This small model answers no questions: it goes on with what you write.",
    "placeholder": "Once upon a time",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as the server sends it; `headers` are all but its type, with `ETag`."""

    content: bytes
    media_type: str
    headers: Mapping[str, str]


class PageFiles:
    """All files of the page, read once.

    Attributes:
        version: hash of all files, which is part of their addresses.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Read the files; settings decide about the key and default values."""
        contents = {
            path.relative_to(_FOLDER).as_posix(): path.read_bytes()
            for path in sorted(_FOLDER.rglob("*"))
            if path.suffix in _MEDIA_TYPES
        }
        names = "".join(f"{name} {_digest(content)}\n" for name, content in contents.items())
        self.version = _digest(names.encode())
        self._files = {
            name: _page_file(content, _MEDIA_TYPES[PurePosixPath(name).suffix], _FOREVER)
            for name, content in contents.items()
        }
        self._indexes = {
            is_story: self._make_index(settings, _STORIES if is_story else _CHATS)
            for is_story in (False, True)
        }

    def index(self, *, is_story_model: bool) -> PageFile:
        """The page, with texts for the model that answers first."""
        return self._indexes[is_story_model]

    def find(self, version: str, name: str) -> PageFile | None:
        """Find a file by its address; None if it does not exist or has changed."""
        return self._files.get(name) if version == self.version else None

    def _make_index(self, settings: ServerSettings, texts: Mapping[str, str]) -> PageFile:
        defaults = {name: getattr(settings.sampling, name) for name in _SHOWN_DEFAULTS}
        template = string.Template((_FOLDER / "index.html").read_text(encoding="utf8"))
        text = template.substitute(
            files=f"page/{self.version}",
            needs_key=str(bool(settings.api_keys)).lower(),
            defaults=html.escape(json.dumps(defaults)),
            **texts,
        )
        return _page_file(text.encode(), "text/html; charset=utf-8", _ASK_AGAIN)


def _page_file(content: bytes, media_type: str, caching: Mapping[str, str]) -> PageFile:
    return PageFile(content, media_type, {**_HEADERS, **caching, "ETag": f'"{_digest(content)}"'})


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
