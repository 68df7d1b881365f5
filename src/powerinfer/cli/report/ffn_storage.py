"""Storage of the FFNs in a file, and the gain from `powerinfer pack`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from powerinfer.cli.report.tables import percent
from powerinfer.convert.layout import KEPT_FORMATS
from powerinfer.quant import format_names
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from powerinfer.gguf import GGUFFile
    from powerinfer.models import ModelConfig

__all__ = [
    "ExpertsReport",
    "FFNStorage",
    "describe_experts",
    "experts_report",
    "ffn_storage",
    "packing_advice",
]

_MATRIX = re.compile(
    r"blk\.[0-9]+\.ffn_(?:gate|up|gate_up|(?P<down>down))"
    r"(?:(?P<experts>_exps|\.[0-9]+)|_shexp)?(?P<is_row>_t)?\.weight"
)


@dataclass(frozen=True, slots=True)
class FFNStorage:
    """Bytes of the FFN matrices of all layers, those of all experts included.

    Attributes:
        plain_down_bytes: down projections stored by columns, of which nothing can be skipped.
        plain_down_formats: their formats, sorted.
        expert_bytes: matrices of experts, without shared ones.
    """

    bytes: int = 0
    down_bytes: int = 0
    plain_down_bytes: int = 0
    plain_down_formats: tuple[str, ...] = ()
    expert_bytes: int = 0

    @property
    def is_down_transposed(self) -> bool | None:
        """True if every down projection has a row per neuron; None if there is none."""
        return self.plain_down_bytes == 0 if self.down_bytes else None


def ffn_storage(file: "GGUFFile") -> FFNStorage:
    """Count the bytes of a file's FFN matrices."""
    whole = down = plain = experts = 0
    formats = set()
    for name, tensor in file.tensors.items():
        match = _MATRIX.fullmatch(name)
        if match is not None:
            whole += tensor.num_bytes
            down += tensor.num_bytes if match["down"] else 0
            if match["down"] and not match["is_row"]:
                plain += tensor.num_bytes
                formats.add(tensor.format)
            experts += tensor.num_bytes if match["experts"] else 0
    return FFNStorage(whole, down, plain, tuple(sorted(formats)), experts)


class ExpertsReport(TypedDict):
    """The key `experts` of `--json`.

    `share_read` and `bytes_read` are read by a token that skips no neurons.
    """

    count: int
    used: int
    bytes: int
    share_read: float
    bytes_read: int


def experts_report(file: "GGUFFile", config: "ModelConfig") -> ExpertsReport | None:
    """Create the key `experts`; None for a model without."""
    experts = config.experts
    if experts is None:
        return None
    count, used = experts.num_experts, experts.num_used
    whole = ffn_storage(file).expert_bytes
    return {
        "count": count,
        "used": used,
        "bytes": whole,
        "share_read": used / count,
        "bytes_read": whole * used // count,
    }


def describe_experts(report: ExpertsReport) -> str:
    """Phrase on the experts that a token uses, and their bytes."""
    return (
        f"{report['used']} of {report['count']} experts per token, which reads "
        f"{percent(report['share_read'])} of their {format_bytes(report['bytes'])}"
    )


def packing_advice(
    plain_down_bytes: int, plain_down_formats: Sequence[str], ffn_bytes: int
) -> str | None:
    """Phrase on the gain from packing down projections; None if all are stored by neurons."""
    if not plain_down_bytes:
        return None
    changed = [
        name for name in plain_down_formats if name in format_names() and name not in KEPT_FORMATS
    ]
    instead = f", {' and '.join(changed)} as q8_0" if changed else ""
    return (
        f"stored by columns and read whole, {percent(plain_down_bytes / ffn_bytes)} of the FFN's "
        f"bytes; `powerinfer pack` stores it by neurons{instead}, so that inactive ones are "
        "skipped there too"
    )
