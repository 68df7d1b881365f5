"""Puts pip into a virtual environment when Python came without `ensurepip` (Debian's does).

Usage: python3 bootstrap_pip.py VENV_PYTHON. Fetches pip's wheel from the package index
(`PIP_INDEX_URL`, default PyPI), checks its sha256 and lets it install itself: a wheel is a zip
file that Python can run from. Standard library only.
"""

import hashlib
import html.parser
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path


class _Links(html.parser.HTMLParser):
    """Collects the addresses of a "simple" index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "a" and names.get("href") and "data-yanked" not in names:
            self.found.append(str(names["href"]))


def _newest_wheel(index: str) -> str:
    page = f"{index.rstrip('/')}/pip/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = _Links()
        links.feed(answer.read().decode())
    wheels = []
    for link in links.found:
        match = re.search(r"pip-(\d+(?:\.\d+)*)-py3-none-any\.whl", link)
        if match:
            version = tuple(int(part) for part in match.group(1).split("."))
            wheels.append((version, urllib.parse.urljoin(page, link)))
    if not wheels:
        sys.exit(f"setup: no pip wheel found at {page}")
    return max(wheels)[1]


def main() -> None:
    """Download, verify, install."""
    venv_python = sys.argv[1]
    url = _newest_wheel(os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple"))
    address, _, fragment = url.partition("#")
    with urllib.request.urlopen(address, timeout=120) as answer:
        wheel = answer.read()
    wanted = fragment.removeprefix("sha256=")
    if wanted and hashlib.sha256(wheel).hexdigest() != wanted:
        sys.exit(f"setup: {address} does not have the sha256 that the index states")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(urllib.parse.urlparse(address).path).name
        path.write_bytes(wheel)
        command = [venv_python, f"{path}/pip", "install", "--quiet", "--no-index", str(path)]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
