"""Flags of llama-server that mean nothing here: `serve` takes them, so that it can stand in."""

from collections.abc import Callable

import click

from powerinfer.cli.flags import Command, add_flags

__all__ = ["ignored_flags", "take_ignored"]

_PREFIX = "ignored_"

# One flag in a line, by all of its names: for those with a value, and for those without.
_WITH_VALUE = """
-ngl --gpu-layers --n-gpu-layers
-ts --tensor-split
-sm --split-mode
-mg --main-gpu
-ot --override-tensor
-b --batch-size
-ub --ubatch-size
-tb --threads-batch
-dt --defrag-thold
-sps --slot-prompt-similarity
-cram --cache-ram
-ctk --cache-type-k
-ctv --cache-type-v
-ctxcp --ctx-checkpoints
-ncmoe --n-cpu-moe
-lv --verbosity --log-verbosity
-C --cpu-mask
-Cr --cpu-range
--cpu-strict
--prio
--poll
-Cb --cpu-mask-batch
-Crb --cpu-range-batch
--cpu-strict-batch
--prio-batch
--poll-batch
--numa
--threads-http
--cache-reuse
--slot-save-path
--log-file
--reasoning-format
--fit
-fitt --fit-target
-fitc --fit-ctx
--sleep-idle-seconds
"""
_WITHOUT_VALUE = """
-cb --cont-batching -nocb --no-cont-batching
-kvo --kv-offload -nkvo --no-kv-offload
-kvu --kv-unified
-cmoe --cpu-moe
-nr --no-repack
--no-host
--op-offload --no-op-offload
--cache-prompt
-e --escape --no-escape
--spm-infill
-dio --direct-io
-v --verbose --log-verbose
--mlock
--jinja
--metrics
--slots --no-slots
--props
--swa-full
--check-tensors
--no-context-shift
--warmup --no-warmup
--perf --no-perf
--log-disable
--log-prefix
--log-timestamps
--no-webui --webui
"""
# A value may follow, or may not.
_WITH_OPTIONAL_VALUE = """
-fa --flash-attn
--log-colors
"""


def ignored_flags(command: Command) -> Command:
    """Add all of them to a command, out of sight of its help."""
    return add_flags(
        command,
        *(_flag(line, default=None) for line in _lines(_WITH_VALUE)),
        *(_flag(line, is_flag=True, default=False) for line in _lines(_WITHOUT_VALUE)),
        *(_flag(line, is_flag=False, flag_value="") for line in _lines(_WITH_OPTIONAL_VALUE)),
    )


def take_ignored(flags: dict[str, object]) -> list[str]:
    """Remove them from the parameters of a command; returns the names of those that were given."""
    found = []
    for name in [each for each in flags if each.startswith(_PREFIX)]:
        value = flags.pop(name)
        if value is not None and value is not False:
            found.append(_SHOWN[name])
    return found


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _name(line: str) -> str:
    return _PREFIX + line.split()[-1].lstrip("-").replace("-", "_")


def _flag(line: str, **settings: object) -> Callable[[Command], Command]:
    option: Callable[..., Callable[[Command], Command]] = click.option
    return option(*line.split(), _name(line), hidden=True, **settings)


_SHOWN = {
    _name(line): line.split()[0]
    for text in (_WITH_VALUE, _WITHOUT_VALUE, _WITH_OPTIONAL_VALUE)
    for line in _lines(text)
}
