"""Prints the name of this machine's folder of results, such as `intel-xeon-avx512`.

A virtual machine may hide its processor's generation, so the instruction set is part of the name.
"""

import re

from powerinfer import _core
from powerinfer.bench.machine import describe_machine

_SAYS_NOTHING = re.compile(r"\((r|tm)\)|\b(processor|cpu|\d+-core)\b|@.*", re.IGNORECASE)
_BEST_FIRST = ("amx", "avx512", "avx2")


def machine_name() -> str:
    """Return the processor's maker, model and best instruction set, as a folder name."""
    words = _SAYS_NOTHING.sub(" ", describe_machine()["cpu"]).lower()
    features = " ".join(_core.cpu_features())
    best = next((name for name in _BEST_FIRST if name in features), "")
    return "-".join([*re.findall(r"[a-z0-9.]+", words), *([best] if best else [])])


if __name__ == "__main__":
    print(machine_name())
