"""Prints which packages are missing here that the checks import, small enough to travel as wheels.

Run before anything is installed, so it uses nothing but Python's own library. torch, triton and
what compiles the engine must be there: they are too large to bring along.
"""

import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["REQUIRED", "missing_packages"]

# What the engine imports to run a model, and pytest for tests/gpu, with what those need in turn.
REQUIRED = (
    "click",
    "numpy",
    "platformdirs",
    "scipy",
    "tokenizers",
    "pytest",
    "iniconfig",
    "packaging",
    "pluggy",
    "pygments",
)


def missing_packages() -> list[str]:
    """Their names, in the order above."""
    return [name for name in REQUIRED if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(" ".join(missing_packages()))
