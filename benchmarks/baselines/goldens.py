"""Golden files, by their digests."""

import hashlib

from baselines.origin import ROOT, Section

__all__ = ["below", "digest_goldens"]

_FOLDER = ROOT / "tests" / "golden"


def digest_goldens() -> Section:
    """SHA-256 of every file below tests/golden that is no program."""
    paths = sorted(path for path in _FOLDER.rglob("*") if path.is_file())
    digests = {
        str(path.relative_to(_FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.suffix not in (".py", ".pyc")
    }
    return {"sha256": digests}


def below(old: Section, new: Section) -> list[str]:
    """Files that changed or are gone."""
    return [
        f"{path} {'changed' if path in new['sha256'] else 'is gone'}"
        for path, digest in old["sha256"].items()
        if new["sha256"].get(path) != digest
    ]
