"""What `orchestrate` and `serve` share: permissions from flags."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import Command, together
from powerinfer.cli.flags.options import option

if TYPE_CHECKING:
    from powerinfer.orchestra.pool import Pool
    from powerinfer.orchestra.primitives.primitive import Permissions

__all__ = ["permissions_of", "permissions_options", "pool_option"]

pool_option = option("--pool FILE", "Pool of workers: a file such as pool.toml.", PathType())

permissions_options: Callable[[Command], Command] = together(
    option(
        "--allow NAME",
        "Allow a primitive that needs leave, such as execute_python; repeatable.",
        name="allowed",
        multiple=True,
    ),
    option(
        "--document PATH",
        "File or folder that may be read; repeatable.",
        PathType(),
        name="documents",
        multiple=True,
    ),
    option(
        "--database PATH",
        "SQLite file that may be queried; repeatable.",
        PathType(),
        name="databases",
        multiple=True,
    ),
    option(
        "--api-host HOST",
        "Host that call_api may reach; repeatable.",
        name="api_hosts",
        multiple=True,
    ),
    option(
        "--let-data-leave",
        "Let what was read from documents, databases and programs leave this machine.",
    ),
)


def permissions_of(flags: Mapping[str, Any], pool: "Pool") -> "Permissions":
    """Read what the user allows.

    Raises:
        click.UsageError: a primitive does not exist, or a path is not there.
    """
    from powerinfer.orchestra import primitives
    from powerinfer.orchestra.primitives.primitive import Permissions

    known = primitives.load()
    for name in flags["allowed"]:
        if name not in known:
            raise click.UsageError(f"--allow {name!r:.60}: primitives are {', '.join(known)}")
    for flag, paths in (("--document", flags["documents"]), ("--database", flags["databases"])):
        for path in paths:
            if not Path(path).exists():
                raise click.UsageError(f"{flag} {path}: no such file or folder")
    return Permissions(
        allowed=frozenset(flags["allowed"]),
        documents=tuple(flags["documents"]),
        databases=tuple(flags["databases"]),
        hosts=frozenset(flags["api_hosts"]),
        commands=pool.commands,
        let_data_leave=flags["let_data_leave"],
    )
