"""Check that a llama-server was built with all instruction sets of this machine."""

from pathlib import Path

__all__ = ["missing_instruction_sets"]

# Linux CPU flags and llama.cpp's names for them.
_NAMES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}


def missing_instruction_sets(system_info: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets that the processor has but the program lacks; if any, comparisons are void.

    Args:
        system_info: printed by llama-server, `AVX2 = 1 | FMA = 1 | ...`.
        cpuinfo: Linux's file; where it does not exist, the result is empty.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf8").splitlines()
    except OSError:
        return []
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    parts = [part.split("=") for part in system_info.replace(":", "|").split("|")]
    built = {part[0].strip() for part in parts if len(part) == 2 and part[1].strip() == "1"}
    return [name for flag, name in _NAMES.items() if flag in flags and name not in built]
