"""Which C++ files clang-tidy has to read again: `.ci/tidy.json` keeps what was clean.

    tidy_record.py changed           prints the files that have changed since clang-tidy passed them
    tidy_record.py passed FILE...    records files that it passed

A file has changed if it, a header of ours that it includes, the checks or their version have.
"""

import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPP = ROOT / "cpp"
RECORD = ROOT / ".ci" / "tidy.json"
SETTINGS = (".clang-tidy", "CMakeLists.txt", "scripts/clang-tidy")

_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _headers(path: Path) -> frozenset[Path]:
    """Headers of ours that a file includes itself."""
    names = (name.decode() for name in _INCLUDE.findall(path.read_bytes()))
    return frozenset(header for name in names if (header := CPP / name).is_file())


def _everything(path: Path) -> set[Path]:
    """The file and all that it includes, directly or not."""
    found, waiting = {path}, [path]
    while waiting:
        new = _headers(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@cache
def _version() -> str:
    command = [str(Path(sys.executable).parent / "clang-tidy"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def inputs_of(path: Path) -> str:
    """Hash of all that decides what clang-tidy says of a file."""
    digest = hashlib.sha256(_version().encode())
    for name in SETTINGS:
        digest.update(_digest(ROOT / name))
    for part in sorted(_everything(path)):
        digest.update(_digest(part))
    return digest.hexdigest()[:16]


def sources() -> list[Path]:
    """What clang-tidy reads: all of cpp but tests, benchmarks and the kernels of arm64."""
    return sorted(
        path
        for path in CPP.rglob("*.cpp")
        if path.relative_to(CPP).parts[0] not in ("tests", "bench") and "/neon" not in str(path)
    )


def read_record() -> dict[str, str]:
    """Hashes by file."""
    if not RECORD.exists():
        return {}
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Run the command."""
    if sys.argv[1:2] not in (["changed"], ["passed"]):
        sys.exit(__doc__)
    record = read_record()
    if sys.argv[1] == "changed":
        for path in sources():
            name = path.relative_to(ROOT).as_posix()
            if record.get(name) != inputs_of(path):
                print(name)
        return
    names = {path.relative_to(ROOT).as_posix() for path in sources()}
    record |= {name: inputs_of(ROOT / name) for name in sys.argv[2:]}
    kept = {name: value for name, value in sorted(record.items()) if name in names}
    part = RECORD.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    part.replace(RECORD)


if __name__ == "__main__":
    main()
