"""Builds the source package and checks that it is whole. Run through scripts/wheel-smoke.

Every file that its documents link to must be in it, and nothing that was built.
"""

import posixpath
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from scikit_build_core.build import build_sdist

# The embedded model takes 13 MiB of it.
_MOST_BYTES = 20 << 20
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]+)|<img[^>]* src=\"(?!https?://)([^\"]+)\"")
_BUILT = (".so", ".pyc", ".o", ".a")


def main(folder: str) -> None:
    """Build it in a folder, and exit with a message where something is wrong."""
    path = Path(folder) / build_sdist(folder)
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
        documents = [name for name in names if name.endswith(".md")]
        texts = {name: _text(archive, path, name) for name in documents}
    folders = {parent for name in names for parent in _parents(name)}
    wrong = [
        f"{document} links to {target}, which is not in it"
        for document, text in sorted(texts.items())
        for target in _targets(document, text)
        if target not in names | folders
    ]
    wrong += [f"{name} does not belong in it" for name in names if name.endswith(_BUILT)]
    if path.stat().st_size > _MOST_BYTES:
        wrong.append(f"it has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
    if wrong:
        sys.exit("\n".join([f"{path.name}:", *wrong]))
    print(f"{path.name}: {len(names)} files, all links of {len(documents)} documents are in it")


def _text(archive: tarfile.TarFile, path: Path, name: str) -> str:
    file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/{name}")
    return "" if file is None else file.read().decode()


def _targets(document: str, text: str) -> Iterator[str]:
    """Paths in the package that a document links to."""
    for found in _LINK.finditer(text):
        link = found[1] or found[2]
        yield posixpath.normpath(posixpath.join(posixpath.dirname(document), link))


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


if __name__ == "__main__":
    main(sys.argv[1])
