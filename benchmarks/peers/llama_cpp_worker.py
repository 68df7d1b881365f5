"""Times llama.cpp (through llama-cpp-python) on one GGUF file and prints one JSON object.

Run by compare.py in an environment that has llama-cpp-python built natively; needs nothing of
powerinfer. Same procedure as `powerinfer bench`: random prompt tokens, one decode step per sample.
"""

import argparse
import json
import statistics
import time
from typing import Any

import llama_cpp
import numpy as np


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class LlamaCpp:
    """One model and one context, one sequence."""

    def __init__(self, path: str, threads: int, context_length: int) -> None:
        llama_cpp.llama_backend_init()
        # Keep a reference: ctypes callbacks die with their Python object.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, None)
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context_length
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)

    def clear(self) -> None:
        """Forget every token."""
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_clear(memory, True)  # noqa: FBT003  the C signature

    def step(self, token_ids: Any, position: int) -> float:
        """Decode `token_ids` from `position`, logits of the last only; returns seconds."""
        batch = self._batch
        batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            batch.token[i] = int(token_id)
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(token_ids) - 1
        start = time.perf_counter()
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_get_logits_ith(self.context, len(token_ids) - 1)
        return time.perf_counter() - start


def main() -> None:
    """Load, warm up, time prefill and decode, print JSON."""
    options = _options()
    start = time.perf_counter()
    engine = LlamaCpp(options.model, options.threads, 1024)
    load_s = time.perf_counter() - start
    random = np.random.default_rng(options.seed)
    tokens = random.integers(300, engine.vocab_size, 1024)
    engine.step(tokens[:1], 0)
    prefill = {}
    for count in options.prefill:
        engine.clear()
        seconds = sum(
            engine.step(tokens[i : i + 512][: count - i], i) for i in range(0, count, 512)
        )
        prefill[str(count)] = count / seconds
    engine.clear()
    engine.step(tokens[:4], 0)
    steps = [engine.step(tokens[4 + i : 5 + i], 4 + i) for i in range(options.decode)]
    print(
        json.dumps(
            {
                "engine": f"llama-cpp-python {llama_cpp.__version__}",
                "system_info": llama_cpp.llama_print_system_info().decode(),
                "load_s": load_s,
                "prefill_tokens_per_s": prefill,
                "decode_tokens_per_s": 1 / statistics.median(steps),
            }
        )
    )


if __name__ == "__main__":
    main()
