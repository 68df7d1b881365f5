"""How much faster a model could decode if bytes were all that counts: dense bytes / sparse bytes.

    python benchmarks/bounds.py MODEL.powerinfer.gguf   (a file of planted.py)
    python benchmarks/bounds.py --shape relullama-7b --format f16 --predicted 0.127

Bytes are those of weights that one decode step reads: attention, head, FFN rows, predictors; no KV
cache, no embedding row. A predictor lets `predicted` of the neurons pass; their gate rows (ungated:
up rows) are read, then up and down rows only of those that fire. A bound of 2.0 says that an engine
which reads at the peer's bandwidth decodes at twice the peer's speed. With `--read THREADS` the
weights of MODEL are read too, with the fastest of several settings, and each line says how many
tokens/s that would allow.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from planting.shapes import SHAPES, PlantedShape
from powerinfer.bench.read_bandwidth import PlainReader
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.quant import get_format

__all__ = ["Densities", "ModelBytes", "bytes_of_file", "bytes_of_shape", "sparse_bytes"]

KINDS = (
    "exact",
    "oracle",
    "mlp",
    "mlp:q8_0",
    "mlp:q4_0",
    "lowbit:2",
    "lowbit:3",
    "lowbit:4",
    "sign",
)
# What lets pass 99 % of the neurons that fire on planted rows, which are nearly Gaussian, where
# 10 % and where 5 % of them fire (docs/speed.md); trained models need far less.
PLANTED_PASS = {
    "sign": (0.78, 0.71),
    "lowbit:2": (0.28, 0.19),
    "lowbit:3": (0.17, 0.11),
    "lowbit:4": (0.135, 0.078),
    "mlp": (0.127, 0.0635),
}


@dataclass(frozen=True)
class ModelBytes:
    """Weight bytes of a model by what reads them, and the weights that predictors copy.

    Attributes:
        attention: projections, norms and biases: read for every token.
        head: the output matrix.
        gate: of all layers; 0 for an ungated FFN.
        up: of all layers.
        down: of all layers.
        predictor: fc1 and fc2 as stored.
        predictor_weights: how many weights those are.
        neuron_weights: how many weights one FFN matrix has, over all layers.
        is_drelu: a copy predictor reads a copy of up as well.
    """

    attention: float
    head: float
    gate: float
    up: float
    down: float
    predictor: float
    predictor_weights: float
    neuron_weights: float
    is_drelu: bool

    @property
    def ffn(self) -> float:
        """All of the FFN."""
        return self.gate + self.up + self.down

    @property
    def dense(self) -> float:
        """What a dense decode step reads."""
        return self.attention + self.head + self.ffn


@dataclass(frozen=True)
class Densities:
    """Shares of neurons.

    Attributes:
        fires: whose activation is not zero.
        gate_fires: whose gate is above zero; more than `fires` for dReLU only.
        predicted: that a predictor lets pass.
        gate_predicted: that the copy of the gate lets pass, where a copy of up is asked next.
    """

    fires: float
    gate_fires: float
    predicted: float
    gate_predicted: float


def bytes_of_file(file: GGUFFile) -> ModelBytes:
    """Sum a file's tensors by role, of experts those that a token uses."""
    names = {
        "gate": _ends("ffn_gate", "", "_exps", "_shexp"),
        "up": _ends("ffn_up", "", "_exps", "_shexp"),
        "down": _ends("ffn_down", "", "_t", "_exps", "_exps_t", "_shexp", "_shexp_t"),
        "predictor": _ends("fc1", "", "_exps") + _ends("fc2", "", "_exps"),
    }
    used = _used_share(file)
    has_head = "output.weight" in file.tensors
    skipped = ("position_embd.weight",) + (("token_embd.weight",) if has_head else ())
    sums = dict.fromkeys((*names, "attention", "head"), 0.0)
    predictor_weights = neuron_weights = 0.0
    for name, tensor in file.tensors.items():
        role = next((role for role, ends in names.items() if name.endswith(ends)), "attention")
        if name in ("output.weight", "token_embd.weight"):
            role = "head"
        if name in skipped:
            continue
        share = used if "_exps" in name else 1.0
        sums[role] += share * tensor.num_bytes
        predictor_weights += share * tensor.num_elements * (role == "predictor")
        neuron_weights += share * tensor.num_elements * (role == "up")
    architecture = file.get_str("general.architecture")
    is_drelu = file.get_str("powerinfer.ffn_activation", "") == "drelu" or architecture == "bamboo"
    return ModelBytes(
        **sums,
        predictor_weights=predictor_weights,
        neuron_weights=neuron_weights,
        is_drelu=is_drelu,
    )


def _ends(name: str, *ends: str) -> tuple[str, ...]:
    return tuple(f".{name}{end}.weight" for end in ends)


def _used_share(file: GGUFFile) -> float:
    """Share of the experts that a token uses; 1 for a file without any."""
    prefix = file.get_str("general.architecture")
    num_experts = file.get_int(f"{prefix}.expert_count", 0)
    return file.get_int(f"{prefix}.expert_used_count") / num_experts if num_experts else 1.0


def bytes_of_shape(
    shape: PlantedShape, weight_format: str, head_format: str, rank: int = 1024
) -> ModelBytes:
    """The same from sizes alone, norms and biases left out."""
    per_weight, layers = _bytes_per_weight(weight_format), shape.num_layers
    hidden, neurons = shape.hidden_size, shape.intermediate_size
    attention = (2 * hidden + 2 * shape.kv_size) * hidden * layers
    matrix = float(hidden * neurons * layers)
    predictor = float(rank * (hidden + neurons) * layers)
    return ModelBytes(
        attention=attention * per_weight,
        head=shape.vocab_size * hidden * _bytes_per_weight(head_format),
        gate=matrix * per_weight * shape.is_gated,
        up=matrix * per_weight,
        down=matrix * per_weight,
        predictor=predictor * per_weight,
        predictor_weights=predictor,
        neuron_weights=matrix,
        is_drelu=shape.is_drelu,
    )


def sparse_bytes(
    model: ModelBytes,
    kind: str,
    share: Densities,
    bytes_per_weight: Callable[[str], float] | None = None,
) -> float:
    """Bytes of one decode step with a kind of sparsity.

    Args:
        model: what there is.
        kind: `off`, `exact`, `oracle` (a perfect predictor without cost), `mlp`, `mlp:FORMAT`,
            `lowbit:B`, `sign`; of a cascade such as `sign+lowbit:2` a later kind is asked for what
            the earlier let pass on planted rows.
        share: densities.
        bytes_per_weight: by name of a format; by default ours.
    """
    size = bytes_per_weight or _bytes_per_weight
    always = model.attention + model.head
    if kind == "off":
        return model.dense
    first, second = (model.gate, model.up) if model.gate else (model.up, 0.0)
    if kind == "exact":
        return always + first + share.gate_fires * second + share.fires * model.down
    if kind == "oracle":
        return always + share.fires * model.ffn
    rows = share.predicted * first + share.fires * (second + model.down)
    asked, predictors = 1.0, 0.0
    for part in kind.split("+"):
        predictors += asked * _predictor_bytes(model, part, share, size)
        asked = planted_pass(part, share.fires)
    return always + predictors + rows


def planted_pass(kind: str, density: float) -> float:
    """What a kind lets pass on planted rows at a recall of 0.99 (`mlp`: 0.96)."""
    at_10, at_5 = PLANTED_PASS.get(kind, PLANTED_PASS["mlp"])
    passed = at_5 + (at_10 - at_5) * (density - 0.05) / 0.05
    return min(1.0, max(density, passed))


def _predictor_bytes(
    model: ModelBytes, kind: str, share: Densities, size: Callable[[str], float]
) -> float:
    name, _, detail = kind.partition(":")
    if name == "mlp":
        return model.predictor_weights * size(detail) if detail else model.predictor
    formats = {"sign": "sign", "lowbit:2": "lowbit2", "lowbit:3": "lowbit3", "lowbit:4": "q4_0"}
    if kind not in formats:
        raise SystemExit(f"error: no byte bound for {kind!r}, only for {', '.join(KINDS)}")
    copies = 1 + (share.gate_predicted if model.is_drelu else 0.0)
    return copies * model.neuron_weights * size(formats[kind])


def _bytes_per_weight(name: str) -> float:
    chosen = get_format(name)
    return chosen.block_bytes / chosen.block_size


def planted_densities(file: GGUFFile, kind: str, predicted: float | None = None) -> Densities:
    """Densities of a file of planted.py; `predicted` as measured, or what planted rows need."""
    fires = file.get_float("powerinfer.synthetic.density")
    gate_fires = file.get_float("powerinfer.synthetic.gate_density", fires)
    has_mlp = "powerinfer.synthetic.predicted_density" in file.metadata
    if predicted is None and kind.startswith("mlp") and has_mlp:
        predicted = file.get_float("powerinfer.synthetic.predicted_density")
    return densities(kind, fires, gate_fires, predicted)


def densities(
    kind: str, fires: float, gate_fires: float, predicted: float | None = None
) -> Densities:
    """Fill in what is not known with what planted rows need."""
    last = kind.split("+")[-1]
    passed = planted_pass(last, fires) if predicted is None else predicted
    # A copy passes about as many more gates as it passes neurons beyond those that fire.
    gate = min(1.0, gate_fires + planted_pass(last, fires) - fires)
    return Densities(fires, gate_fires, passed, gate)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--format", default="f16")
    parser.add_argument("--head-format", help="default: as --format, q6_k for q4_0")
    parser.add_argument("--rank", type=int, default=1024)
    parser.add_argument("--density", type=float)
    parser.add_argument("--read", type=int, metavar="THREADS", help="measure a plain read of MODEL")
    parser.add_argument("--predicted", type=float, help="what the predictor lets pass")
    return parser.parse_args()


def _read_bytes_per_s(file: GGUFFile, threads: int) -> float:
    """Of the fastest plain read of the file's weights; says what that was."""
    weights = [tensor.data.reshape(-1) for tensor in file.tensors.values()]
    reader = PlainReader(threads)
    rate = sum(array.nbytes for array in weights) / min(reader.read_s(weights) for _ in range(3))
    print(f"plain read: {rate / 1e9:.2f} GB/s ({reader.settings})")
    return rate


def main() -> None:
    """Command line."""
    options = _options()
    rate = None
    if options.model:
        file = open_gguf(options.model)
        model = bytes_of_file(file)
        rate = _read_bytes_per_s(file, options.read) if options.read else None
        shares = {kind: planted_densities(file, kind, options.predicted) for kind in KINDS}
    elif options.shape:
        shape = SHAPES[options.shape]
        shape = replace(shape, num_layers=options.layers or shape.num_layers)
        head = options.head_format or ("q6_k" if options.format == "q4_0" else options.format)
        model = bytes_of_shape(shape, options.format, head, options.rank)
        fires = options.density or shape.density
        gate = 0.3 if shape.is_drelu else fires
        shares = {kind: densities(kind, fires, gate, options.predicted) for kind in KINDS}
    else:
        raise SystemExit("error: give a model file or --shape")
    print(f"dense: {model.dense / 1e9:.2f} GB per token, of which head {model.head / 1e9:.2f}")
    for kind in KINDS:
        read = sparse_bytes(model, kind, shares[kind])
        print(
            f"{kind:10} predicted {shares[kind].predicted:5.3f}  {read / 1e9:6.2f} GB"
            f"  bound {model.dense / read:.2f}" + (f"  {rate / read:6.1f} tokens/s" if rate else "")
        )


if __name__ == "__main__":
    main()
