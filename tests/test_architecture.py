"""The layers of ARCHITECTURE.md, held by walking the syntax trees: imports point down only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "powerinfer"

# Higher may import lower; packages on one line may not import each other.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("serve", "bench", "convert", "offline"),
    ("engine",),
    ("models",),
    ("predictors", "placement"),
    ("ops", "tokenizer"),
    ("gguf",),
    ("quant",),
    ("sidecar",),
    ("values", "_plugins", "_files"),
    ("errors", "_version"),
)
LEVEL_OF = {package: level for level, row in enumerate(LEVELS) for package in row}

# Who alone may import a heavy or private module.
RESERVED = {
    "_core": ("ops/cpu/",),
    "torch": ("ops/gpu/", "ops/hybrid/", "offline/", "convert/", "placement/activation_folder.py"),
    "triton": ("ops/gpu/kernels/",),
    "transformers": ("convert/", "offline/"),
}


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if package == "__init__":
        return
    assert package in LEVEL_OF, f"{package} is not in the layers of ARCHITECTURE.md"
    for name, line in _imports(path):
        parts = name.split(".")
        if parts[0] != "powerinfer" or len(parts) < 2 or parts[1] == package:
            continue
        if parts[1] in LEVEL_OF:
            assert LEVEL_OF[parts[1]] > LEVEL_OF[package], (
                f"{path}:{line}: {package} may not import {parts[1]}"
            )


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_reserved_modules(path: Path) -> None:
    where = path.relative_to(SOURCE).as_posix()
    for name, line in _imports(path):
        for module, allowed in RESERVED.items():
            if module in name.split("."):
                assert where.startswith(allowed), f"{path}:{line}: only {allowed} import {module}"
