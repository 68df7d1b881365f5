"""Mapping between tensor names of checkpoints and of model files."""

import re
from dataclasses import dataclass

from powerinfer.models import Architecture

__all__ = ["Names", "Place", "is_ignored"]

_NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,5})(?=\.|$)")
# Suffixes of module names, and their parts in model files; plain parameters have no suffix.
_PARTS = {
    ".weight": "weight",
    ".bias": "bias",
    "_bias": "bias",
    "_blocks": "blocks",
    "_scales": "scales",
    "": "weight",
}
_OUTER_MODULES = ("model.", "transformer.")
# Suffixes of parameters of linear attention that are not part of a module.
_PARAMETERS = {"A_log": "", "D": "", "dt": "_bias"}
_TEXT_MODEL = "model.language_model."
# Computed from the configuration, but saved by some versions of some programs.
_IGNORED = (".rotary_emb.inv_freq", ".masked_bias", "decoder.version")
# Names that third-party code uses for TurboSparse-Mistral.
_PREDICTORS = {
    "blk.{layer}.fc1": "model.layers.{layer}.mlp.predictor.fc1",
    "blk.{layer}.fc2": "model.layers.{layer}.mlp.predictor.fc2",
}


@dataclass(frozen=True)
class Place:
    """Place of a checkpoint's tensor in a model file.

    Attributes:
        part: `weight` or `bias`; `blocks` or `scales` of an MXFP4 weight.
        expert: expert number; None for a tensor of all experts, or in dense models.
    """

    name: str
    part: str
    expert: int | None = None


class Names:
    """Tensor names of one family, in both directions."""

    def __init__(self, architecture: Architecture) -> None:
        self._theirs: dict[str, list[str]] = {}
        self._ours: dict[str, str] = {}
        for ours, theirs in {**architecture.hugging_face_names, **_PREDICTORS}.items():
            self._theirs[ours] = [theirs] if isinstance(theirs, str) else list(theirs)
            for name in self._theirs[ours]:
                # Some checkpoints were saved from the inner model.
                names = {name, *(name.removeprefix(outer) for outer in _OUTER_MODULES)}
                if architecture.checkpoint.multimodal_types:
                    names.add(name.replace("model.", _TEXT_MODEL, 1))
                self._ours.update(dict.fromkeys(names, ours))

    def place(self, name: str) -> Place | None:
        """Find the place of a checkpoint's tensor; None if the family has none."""
        for suffix, part in _PARTS.items():
            if not name.endswith(suffix):
                continue
            module = name.removesuffix(suffix)
            numbers = _NUMBER.findall(module)
            holders = iter(("{layer}", "{expert}"))
            template = _NUMBER.sub(lambda found: next(holders, found[0]), module)  # noqa: B023
            ours = self._ours.get(template)
            if ours is not None:
                expert = int(numbers[1]) if len(numbers) > 1 else None
                layer = numbers[0] if numbers else ""
                return Place(ours.replace("{layer}", layer), part, expert)
        return None

    def in_checkpoint(self, name: str) -> str:
        """Checkpoint name of a model file's tensor, for messages."""
        module, _, part = name.rpartition(".")
        if part in ("ssm_a", "ssm_d", "scale"):  # without a part
            module = name
        layer = re.match(r"blk\.(\d+)\.", module)
        template = re.sub(r"^blk\.\d+\.", "blk.{layer}.", module).removesuffix("_t")
        fused = re.sub(r"ffn_(gate|up)(?=_|$)", "ffn_gate_up", template)
        fused = re.sub(r"attn_[qkv]$", "attn_qkv", fused)
        theirs = self._theirs.get(template) or self._theirs.get(fused)
        if theirs is None:
            return name
        is_parameter = theirs[0].endswith(("_proj", "sinks")) and "experts." in theirs[0]
        is_parameter |= part == "scale" or theirs[0].endswith("layer_scalar")
        suffix = "" if is_parameter else f".{part}"
        suffix = _PARAMETERS.get(theirs[0].rpartition(".")[2], suffix)
        return theirs[0].replace("{layer}", layer[1] if layer else "") + suffix


def is_ignored(name: str, architecture: Architecture) -> bool:
    """Return whether a tensor is redundant with the configuration or left out by the family."""
    return name.endswith(_IGNORED) or name.startswith(architecture.checkpoint.left_out)
