"""Times decoding with the original PowerInfer on one file and prints one JSON object.

Run by compare.py. Nothing of the original can be imported: its program `main` (`--program`) runs as
a process, and its own report of times is read. Those leave sampling out, as the other peers' do.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from procedure import DECODE_PROMPT, options_of

_DECODED = re.compile(r"(?<!prompt) eval time = .*?([\d.]+) tokens per second")


def main() -> None:
    """Command line."""
    parser = options_of(__doc__)
    parser.add_argument("--program", type=Path, required=True, help="its program `main`")
    options = parser.parse_args()
    # Words of the vocabularies that synthetic models have, a token each.
    numbers = np.random.default_rng(options.seed).integers(1, 4096, DECODE_PROMPT)
    command = [str(options.program.resolve()), "-m", str(Path(options.model).resolve())]
    command += ["-t", str(options.threads), "-n", str(options.decode), "--ignore-eos"]
    # Unlikely tokens too, so that not the same few neurons fire again and again.
    command += ["--temp", "1", "--top-k", "0", "--top-p", "1", "-s", str(options.seed)]
    command += ["-p", " ".join(f"{number:x}" for number in numbers)]
    # It leaves a log where it runs.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    # Random tokens are no valid text.
    report = done.stderr.decode(errors="replace")
    found = _DECODED.search(report)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"error: {' '.join(command)}: {report.strip()[-500:]}")
    print(
        json.dumps(
            {
                "engine": "the original PowerInfer",
                "prefill_tokens_per_s": {},
                "decode_tokens_per_s": float(found[1]),
            }
        )
    )


if __name__ == "__main__":
    main()
