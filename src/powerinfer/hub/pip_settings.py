"""pip's configuration of package indexes: its files and its variables, whether pip is here or not.

They are read as pip reads them, because its own reader has no public interface, and a program that
`uv tool` or `pipx` installed has no pip beside it.
"""

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from powerinfer.errors import HubError

__all__ = ["PipSettings", "Source", "read_pip_settings"]

_DEFAULT_INDEX = "https://pypi.org/simple"
_DEFAULT_TIMEOUT_S = 15.0
# Later ones override earlier ones.
_SECTIONS = ("global", "download")
_VARIABLE = "PIP_"
_CERT_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # pip's HTTP client reads them


class Source(NamedTuple):
    """A place to look for packages: an index, or (`find-links`) a page or folder with wheels."""

    address: str
    is_index: bool


class PipSettings(NamedTuple):
    """Settings for requests to indexes.

    Attributes:
        sources: in the order in which pip asks them.
        trusted_hosts: `HOST` or `HOST:PORT`, asked without checks of certificates.
        cert: file or folder of certificates to check servers with, instead of the system's.
    """

    sources: tuple[Source, ...]
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None
    timeout_s: float = _DEFAULT_TIMEOUT_S


def read_pip_settings() -> PipSettings:
    """Read the settings.

    Raises:
        HubError: a file cannot be read, or a value has another form.
    """
    values = _values()
    links = [Source(each, is_index=False) for each in values.get("find-links", "").split()]
    indexes = [values.get("index-url", _DEFAULT_INDEX), *values.get("extra-index-url", "").split()]
    if values.get("no-index", "").lower() in ("1", "true", "yes", "y", "t", "on"):
        indexes = []
    timeout = values.get("timeout") or values.get("default-timeout") or _DEFAULT_TIMEOUT_S
    try:
        timeout_s = float(timeout)
    except ValueError:
        raise HubError(f"pip's timeout is {timeout!r:.60}; expected a number of seconds") from None
    certs = (values.get("cert"), *map(os.environ.get, _CERT_VARIABLES))
    return PipSettings(
        sources=(*links, *(Source(each, is_index=True) for each in indexes)),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        cert=next(filter(None, certs), None),
        proxy=values.get("proxy"),
        timeout_s=timeout_s,
    )


def _values() -> Mapping[str, str]:
    """All values that are set, by the names of pip's long options."""
    # Interpolation would trip over the % of addresses.
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = _option  # type: ignore[assignment, method-assign]
    for path in _files():
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as problem:
            why = " ".join(str(problem).split())
            raise HubError(f"{path}: pip's configuration cannot be read: {why}") from None
    values: dict[str, str] = {}
    for section in filter(parser.has_section, _SECTIONS):
        values |= parser[section]
    for name, value in os.environ.items():
        if name.startswith(_VARIABLE):
            values[_option(name.removeprefix(_VARIABLE))] = value
    return {name: value for name, value in values.items() if value}


def _files() -> list[Path]:
    """Files that pip would read, those that override others last; some may not exist."""
    from platformdirs import PlatformDirs

    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    dirs = PlatformDirs("pip", appauthor=False, roaming=True, multipath=True)
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    everyone = [*(Path(each) for each in dirs.site_config_dir.split(os.pathsep)), Path("/etc")]
    own = [Path.home() / ".pip", Path(dirs.user_config_dir)]
    if named and Path(named).exists():
        own = []
    folders = [*everyone, *own, Path(sys.prefix)]
    return [*(folder / name for folder in folders), *([Path(named)] if named else [])]


def _option(name: str) -> str:
    return name.strip().lower().replace("_", "-").removeprefix("--")
