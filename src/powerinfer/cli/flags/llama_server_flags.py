"""Flags of llama-server that `serve` accepts and ignores, so that it can replace it."""

from collections.abc import Callable

import click

from powerinfer.cli.flags.flags import Command, together

__all__ = ["llama_server_flags", "take_llama_server_flags"]

_PREFIX = "ignored_"

# One flag per line, with all its names.
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
# The value is optional.
_WITH_OPTIONAL_VALUE = """
-fa --flash-attn
--log-colors
"""
# They change the answers of llama-server, so users must know that they do not here.
_WITHOUT_EFFECT = """
--rope-scaling
--rope-scale
--rope-freq-base
--rope-freq-scale
--yarn-orig-ctx
--yarn-ext-factor
--yarn-attn-factor
--yarn-beta-slow
--yarn-beta-fast
--chat-template
--chat-template-file
--chat-template-kwargs
--reasoning-budget
--samplers
--sampling-seq --sampler-seq
--top-nsigma --top-n-sigma
--xtc-probability
--xtc-threshold
--typical --typical-p
--dynatemp-range
--dynatemp-exp
--dry-multiplier
--dry-base
--dry-allowed-length
--dry-penalty-last-n
--dry-sequence-breaker
--mirostat
--mirostat-lr
--mirostat-ent
"""


def take_llama_server_flags(flags: dict[str, object]) -> tuple[list[str], list[str]]:
    """Remove them from the parameters of a command.

    Returns:
        Those given that mean nothing here, and those that change the answers of llama-server only.
    """
    given = {name: flags.pop(name) for name in list(flags) if name.startswith(_PREFIX)}
    found = [name for name, value in given.items() if value not in (None, False, ())]
    silent = {_name(line) for line in _lines(_WITHOUT_EFFECT)}
    return (
        [_SHOWN[name] for name in found if name not in silent],
        [_SHOWN[name] for name in found if name in silent],
    )


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _name(line: str) -> str:
    return _PREFIX + line.split()[-1].lstrip("-").replace("-", "_")


def _flag(line: str, **settings: object) -> Callable[[Command], Command]:
    option: Callable[..., Callable[[Command], Command]] = click.option
    return option(*line.split(), _name(line), hidden=True, **settings)


_SHOWN = {
    _name(line): line.split()[0]
    for text in (_WITH_VALUE, _WITHOUT_VALUE, _WITH_OPTIONAL_VALUE, _WITHOUT_EFFECT)
    for line in _lines(text)
}

# All of them, hidden from the help of the command.
llama_server_flags = together(
    *(_flag(line, default=None, multiple=True) for line in _lines(_WITHOUT_EFFECT)),
    *(_flag(line, default=None) for line in _lines(_WITH_VALUE)),
    *(_flag(line, is_flag=True, default=False) for line in _lines(_WITHOUT_VALUE)),
    *(_flag(line, is_flag=False, flag_value="") for line in _lines(_WITH_OPTIONAL_VALUE)),
)
