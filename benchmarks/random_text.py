"""Prints random text of a synthetic model's own pieces, to calibrate its predictors with.

    python benchmarks/random_text.py MODEL.gguf --tokens 4096 > random.txt

Planted models are fitted to random tokens; any real text would be a handful of their pieces.
"""

import argparse
from pathlib import Path

import numpy as np

from powerinfer.gguf import open_gguf

_SPACE = "\u2581"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    pieces = open_gguf(options.model).get_strings("tokenizer.ggml.tokens")
    words = [piece for piece in pieces if piece.startswith(_SPACE) and len(piece) > 1]
    chosen = np.random.default_rng(options.seed).choice(len(words), options.tokens)
    print("".join(words[i] for i in chosen).replace(_SPACE, " ").strip())


if __name__ == "__main__":
    main()
