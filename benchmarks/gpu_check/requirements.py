"""Prints which packages are missing here that the engine and its tests need at run time.

Run before anything is installed, so it uses nothing but Python's own library. torch, triton and
what is compiled must be there: they are too large to bring along.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["FURTHER", "missing_packages"]

# What packages of ours need in turn, and the tests of tests/gpu with what those need.
FURTHER = ("wcwidth", "pytest", "iniconfig", "packaging", "pluggy", "pygments")


def missing_packages(project: Path) -> list[str]:
    """Names, in the order of `pyproject.toml`."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in table["dependencies"]]
    return [name for name in (*names, *FURTHER) if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(" ".join(missing_packages(Path("pyproject.toml"))))
