"""The package's extras: what to say where a library of one is missing."""

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """What to do about it, in a source folder and for an installed wheel alike.

    Args:
        extra: of pyproject.toml, such as `cuda`.
    """
    return (
        f"install the extra {extra}: scripts/setup {extra} in the source folder, or pip install "
        f"'WHEEL[{extra}]' with the wheel that powerinfer was installed from"
    )
