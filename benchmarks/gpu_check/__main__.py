"""Runs one part of `scripts/gpu-check`, which builds the engine and then calls this.

python -m gpu_check steps OUT --device cuda
"""

import argparse
import os
import sys
import time
from pathlib import Path

from gpu_check import findings
from gpu_check.checks import PARTS, check_named
from gpu_check.findings import Setting
from gpu_check.parts import plant, run_part
from gpu_check.processes import Clock


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # The last two are how a part calls itself: what it plants and checks are processes.
    parser.add_argument("part", choices=[*PARTS, "plant", "check"])
    parser.add_argument("out", type=Path, help="folder for results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, required=True, help="for files needed meanwhile")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--began", type=float, help="seconds since the epoch")
    parser.add_argument("--seconds", type=float, default=525.0, help="that the part may take")
    parser.add_argument("--only", action="append", default=[], help="beginning of a name")
    parser.add_argument("--found", type=Path, help="of a check: file for what it finds")
    return parser.parse_args()


def main() -> None:
    """Command line."""
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(options.device, options.folder, options.out, options.threads)
    if options.part == "plant":
        plant(setting, options.only)
    elif options.part == "check":
        (name,) = options.only
        findings.keep(check_named(name)(setting), options.found)
    else:
        clock = Clock(options.began or time.time(), options.seconds)
        sys.exit(run_part(options.part, setting, clock, options.only))


if __name__ == "__main__":
    main()
