"""Writes what a GPU benchmark ran on, and ends with 1 where it cannot run.

python benchmarks/gpu_machine.py --device cuda -o machine.json
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from powerinfer.bench.machine import describe_machine

__all__ = ["describe_gpu"]


def describe_gpu(device: str) -> dict[str, Any]:
    """The machine with its GPU: name, memory, versions of what drives it, as JSON values."""
    # First: it chooses how kernels run, which must be known when Triton is imported.
    kernels = import_module("powerinfer.ops.gpu.kernels")
    import torch
    import triton

    found = describe_machine() | {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "gpu": None,
        "is_interpreted": kernels.IS_INTERPRETED,
    }
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "gpu_multiprocessors": properties.multi_processor_count,
        }
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        found = describe_gpu(options.device)
    except (ImportError, RuntimeError, AssertionError) as error:
        sys.exit(f"error: no usable device {options.device!r}: {error}")
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
