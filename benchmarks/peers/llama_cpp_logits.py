"""Writes llama.cpp's logits of the second half of windows of tokens.

Run by rounding.py in an environment that has llama-cpp-python; needs nothing of powerinfer.
"""

import argparse
from pathlib import Path

import llama_cpp
import numpy as np


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("tokens", type=Path, help=".npy, i32[windows, window]")
    parser.add_argument("output", type=Path, help=".npy, f32[windows, scored, vocab_size]")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    windows = np.load(options.tokens)
    length = windows.shape[1]
    llm = llama_cpp.Llama(
        options.model,
        n_ctx=length,
        n_batch=length,
        n_ubatch=length,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        logits_all=True,
        verbose=False,
    )
    first = length // 2
    shape = (len(windows), length - 1 - first, llm.n_vocab())
    out = np.lib.format.open_memmap(options.output, "w+", np.float32, shape)
    for window, logits in zip(windows.tolist(), out, strict=True):
        llm.reset()
        llm.eval(window[:-1])
        logits[:] = llm.scores[first : length - 1]


if __name__ == "__main__":
    main()
