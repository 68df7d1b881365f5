"""Advice on missing extras of the package."""

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """Say how to install an extra of pyproject.toml, from source and from a wheel."""
    return (
        f"install the extra {extra}: scripts/setup {extra} in the source folder, or pip install "
        f"'WHEEL[{extra}]' with the wheel that powerinfer was installed from"
    )
