"""Help in sections: first the options that people need, then the others by subject."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

__all__ = ["SectionedCommand"]

# Fields of `EngineOptions` and `SamplingParams`, and parameters that serving commands share.
_SECTIONS: Mapping[str, Sequence[str]] = {
    "Sampling": (
        *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
        *("presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos"),
    ),
    "Form of the text": ("json_schema", "regex", "grammar"),
    "Sparsity": (
        *("sparsity", "activation", "activation_threshold", "max_ffn_error", "recall"),
        "measure_recall",
    ),
    "Orchestra": (
        *("pool", "allowed", "allow_over_http", "documents", "databases", "api_hosts"),
        "let_data_leave",
    ),
    "Drafts": ("draft", "draft_model", "draft_memory"),
    "GPU": (
        *("device", "vram_budget", "gpu_index", "reset_gpu_index", "disable_gpu_index"),
        *("online", "solver"),
    ),
    "Memory and processor": (
        *("context_length", "context_shift", "keep_tokens", "kv_type", "kv_tokens"),
        *("state_cache", "state_interval", "mmap", "threads", "kernels", "head"),
    ),
}


class SectionedCommand(click.Command):
    """A command whose help groups its options; what they do is as ever."""

    def __init__(
        self, *args: Any, first: Sequence[str], rest: str = "Other", **settings: Any
    ) -> None:
        """Create a command.

        Args:
            *args: as click takes them.
            first: names of the parameters that people need, in this order.
            rest: heading of those that belong to no section.
            **settings: as click takes them.
        """
        super().__init__(*args, **settings)
        self.first, self._rest = first, rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections that have options."""
        options = {each.name: each for each in self.get_params(ctx) if each.name is not None}
        shows_help = self.get_help_option(ctx)
        first = [*self.first, *([] if shows_help is None else [shows_help.name])]
        for heading, names in [("Options", first), *_SECTIONS.items()]:
            found = [options.pop(name) for name in names if name in options]
            _write(heading, found, ctx, formatter)
        _write(self._rest, options.values(), ctx, formatter)


def _write(
    heading: str,
    options: Iterable[click.Parameter],
    ctx: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    rows = [each.get_help_record(ctx) for each in options if isinstance(each, click.Option)]
    shown = [row for row in rows if row is not None]
    if shown:
        with formatter.section(heading):
            formatter.write_dl(shown)
