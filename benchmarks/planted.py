r"""Writes models whose FFN neurons fire as rarely as a trained model's, with predictors.

Weights are random, but gate rows carry offsets that make neuron i fire with a rate of a power law,
and the `mlp` predictor in the file knows all but a share of what decides it. The text is noise;
speed, memory traffic and what the operators must skip are real.

    python benchmarks/planted.py --shape relullama-7b --layers 8 --format f16 \
        -o relullama-8L.powerinfer.gguf --plain relullama-8L.gguf

Rank, density, predicted density, recall, precision and FFN error, measured on held-out random
tokens by a numpy forward pass, are printed, stored in `powerinfer.synthetic.*` and, per layer, in
OUTPUT.planted.json. `--plain` writes the file that peers run (benchmarks/planting/twin.py).
"""

import argparse
import json
import statistics
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planting.recipe import Knobs, format_named
from planting.shapes import SHAPES, PlantedShape, architecture_metadata
from planting.stream import PlantedStream
from planting.twin import write_twin
from powerinfer.gguf import write_gguf

MEASURED = (
    "density",
    "gate_density",
    "predicted_density",
    "recall",
    "precision",
    "ffn_error",
    "share_of_neurons_for_80_percent",
)
DEFAULT_RANK, TINY_RANK = 1024, 128
_FLOAT32_TYPE = 6


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="relullama-7b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--format", default="f16", help="of the matrices: f32 f16 q8_0 q4_0")
    parser.add_argument("--head-format", help="default: q8_0 in a q4_0 file, else as --format")
    parser.add_argument("--predictor-format", help="of fc1 and fc2, default: as --format")
    parser.add_argument("--density", type=float, help="share of neurons that fire")
    parser.add_argument("--rank", type=int, help="hidden size of the predictor, default 1024")
    parser.add_argument("--noise", type=float, default=0.02, help="variance it cannot see")
    parser.add_argument(
        "--margin", type=float, default=0.15, help="shift towards recall, in deviations"
    )
    parser.add_argument("--exponent", type=float, default=0.9, help="of the power law")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--plain", type=Path, help="also write the plain file for peers")
    return parser.parse_args()


def _knobs(options: argparse.Namespace, shape: PlantedShape) -> Knobs:
    predictor_format = format_named(options.predictor_format or options.format)
    rank = TINY_RANK if shape.hidden_size <= 256 else DEFAULT_RANK
    return Knobs(
        density=options.density or shape.density,
        rank=options.rank or rank,
        noise=options.noise,
        margin=options.margin,
        exponent=options.exponent,
        weight_format=format_named(options.format),
        predictor_format=predictor_format,
    )


def _metadata(shape: PlantedShape, knobs: Knobs, options: argparse.Namespace) -> dict[str, object]:
    metadata = architecture_metadata(shape, options.output.stem)
    metadata["powerinfer.sparse_threshold"] = np.float32(0)
    settings = {
        "shape": options.shape,
        "rank": np.uint32(knobs.rank),
        "seed": np.uint32(options.seed),
        "target_density": np.float32(knobs.density),
        "noise": np.float32(knobs.noise),
        "margin": np.float32(knobs.margin),
    }
    # Known only when everything is written: filled in at the end.
    settings |= {name: np.float32("nan") for name in MEASURED}
    return metadata | {f"powerinfer.synthetic.{key}": value for key, value in settings.items()}


def _fill_in(path: Path, means: dict[str, float]) -> None:
    """Overwrite the placeholders of what was measured; they keep their size."""
    with path.open("r+b") as file:
        head = file.read(64 << 20)
        for name, value in means.items():
            key = f"powerinfer.synthetic.{name}".encode()
            entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", _FLOAT32_TYPE)
            file.seek(head.index(entry) + len(entry))
            file.write(struct.pack("<f", value))


def _report(
    options: argparse.Namespace, shape: PlantedShape, knobs: Knobs, layers: list[dict[str, float]]
) -> dict[str, Any]:
    return {
        "shape": options.shape,
        "architecture": shape.architecture,
        "layers": shape.num_layers,
        "format": knobs.weight_format.name,
        "head_format": options.head_format,
        "predictor_format": knobs.predictor_format.name,
        "rank": knobs.rank,
        "noise": knobs.noise,
        "margin": knobs.margin,
        "seed": options.seed,
        "mean": {name: statistics.mean(row[name] for row in layers) for name in MEASURED},
        "by_layer": layers,
    }


def main() -> None:
    """Command line."""
    options = _options()
    shape = SHAPES[options.shape]
    shape = replace(shape, num_layers=options.layers or shape.num_layers)
    knobs = _knobs(options, shape)
    default_head = "q8_0" if options.format == "q4_0" else options.format
    options.head_format = options.head_format or default_head
    if shape.architecture == "opt":
        options.head_format = options.format  # tied to the embedding
    started = time.perf_counter()
    stream = PlantedStream(shape, knobs, format_named(options.head_format), options.seed)
    write_gguf(
        options.output, _metadata(shape, knobs, options), list(stream.tensors()), magic="PWRI"
    )
    report = _report(options, shape, knobs, stream.statistics)
    _fill_in(options.output, report["mean"])
    options.output.with_suffix(".planted.json").write_text(
        json.dumps(report, indent=1) + "\n", encoding="utf8"
    )
    if options.plain:
        write_twin(options.output, options.plain, shape)
    figures = "  ".join(f"{name} {value:.4f}" for name, value in report["mean"].items())
    print(f"{options.output.name}  rank {knobs.rank}  {figures}")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
