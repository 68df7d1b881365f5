"""What `orchestrate` and `serve` share: permissions from flags."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import Command, together
from powerinfer.cli.flags.options import option

if TYPE_CHECKING:
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.orchestra.pool import Pool
    from powerinfer.orchestra.primitives.primitive import Permissions
    from powerinfer.serve.context import ServerContext
    from powerinfer.serve.model_source import ModelSource

__all__ = ["ServedOrchestra", "permissions_of", "permissions_options", "pool_option"]

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
        click.UsageError: a primitive does not exist, a path is not there, or a host is none.
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
    for host in flags["api_hosts"]:
        if not host or set(host) & set("/@?#\\ "):
            raise click.UsageError(f"--api-host {host!r:.60}: want a host, such as api.example.org")
    return Permissions(
        allowed=frozenset(flags["allowed"]),
        documents=tuple(flags["documents"]),
        databases=tuple(flags["databases"]),
        hosts=frozenset(flags["api_hosts"]),
        commands=pool.commands,
        let_data_leave=flags["let_data_leave"],
    )


@dataclass(frozen=True)
class ServedOrchestra:
    """The orchestra of a server.

    Attributes:
        sources: the models of its pool, which the server serves, too.
    """

    pool: "Pool"
    permissions: "Permissions"
    sources: "list[ModelSource]"

    @classmethod
    def read(cls, flags: Mapping[str, Any], options: "LLMOptions") -> "ServedOrchestra":
        """Read the pool that `serve --pool` names, and what is allowed.

        Raises:
            click.UsageError: code would run for whoever reaches the server, without a second flag.
            PowerInferError: the pool's file is malformed, or a model does not exist.
        """
        from powerinfer.orchestra.answerer import ORCHESTRA
        from powerinfer.orchestra.orchestra import open_pool, pool_sources
        from powerinfer.orchestra.pool import PoolError

        if flags["allowed"] and not flags["allow_over_http"]:
            raise click.UsageError(
                f"--allow {flags['allowed'][0]} would be for everyone who reaches this server: "
                "give --allow-over-http too if that is meant"
            )
        pool = open_pool(cast("Path", flags["pool"]))
        if any(each.name == ORCHESTRA for each in pool.workers):
            raise PoolError(f"{flags['pool']}: {ORCHESTRA!r} is the name of all workers together")
        return cls(pool, permissions_of(flags, pool), pool_sources(pool, options))

    def join(self, context: "ServerContext") -> None:
        """Answer chats of a server in the name of the orchestra.

        Raises:
            PowerInferError: a worker elsewhere has no key, or needs a package that is missing.
        """
        from powerinfer.orchestra.answerer import ORCHESTRA, OrchestraAnswerer
        from powerinfer.orchestra.orchestra import players_of

        players = players_of(self.pool, context, self.permissions)
        context.answerers[ORCHESTRA] = OrchestraAnswerer(players)
