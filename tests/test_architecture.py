"""The layers of ARCHITECTURE.md, enforced by walking the syntax trees: imports point down only."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "powerinfer"
KERNELS = SOURCE / "ops" / "gpu" / "kernels"

# Higher may import lower; packages on one line may not import each other.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("serve", "bench", "convert", "evaluation", "offline"),
    ("engine",),
    ("models",),
    ("predictors", "placement"),
    ("ops", "tokenizer"),
    ("gguf",),
    ("quant",),
    ("hub",),
    ("sidecar",),
    ("values", "_plugins", "_files", "_extras"),
    ("_replacing",),
    ("_locks",),
    ("errors", "_version", "_program_end"),
)
LEVEL_OF = {package: level for level, row in enumerate(LEVELS) for package in row}

# Who alone may import a heavy or private module.
RESERVED = {
    "_core": ("ops/cpu/",),
    "torch": ("ops/gpu/", "ops/hybrid/", "offline/", "convert/", "placement/activation_folder.py"),
    "triton": ("ops/gpu/kernels/",),
    "huggingface_hub": ("hub/",),
    "transformers": ("convert/", "offline/"),
    "lm_eval": ("evaluation/",),
    "datasets": ("evaluation/",),
    "fastapi": ("serve/",),
    "starlette": ("serve/",),
    "uvicorn": ("serve/",),
    "ray": ("serve/ray/",),
    "prometheus_client": ("serve/",),
    "llguidance": ("engine/grammar/",),
}

# Who may import a reserved module inside functions only: the base install lacks it, or it is slow.
LATE_ONLY = {"torch": ("placement/activation_folder.py",), "huggingface_hub": ("hub/",)}

# What a backend may import of the others; the files beside these folders import none of them.
BACKENDS: dict[str, tuple[str, ...]] = {
    "reference": (),
    "cpu": (),
    "gpu": (),
    "hybrid": ("cpu", "gpu"),
}

# Who may import the oracle: tests, and
ORACLE_USERS = (
    "ops/reference/",
    # to run models on it (`--kernels reference`);
    "engine/loader.py",
    # to compute in f64 which neurons matter, which predictors are calibrated and measured against;
    "engine/calibration/ground_truth.py",
    # to ask which neurons fire, for the predictor that is always right.
    "predictors/kinds/oracle.py",
)


@dataclass(frozen=True)
class Import:
    """One import.

    Attributes:
        name: of the module, or `a.b` for `from a import b`, be that a module or not.
        line: where.
        is_late: inside a function.
    """

    name: str
    line: int
    is_late: bool


def _imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late = {inner for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(name, node.lineno, node in late) for name in names)


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _shown(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


each_file = pytest.mark.parametrize("path", _files(), ids=_shown)


@each_file
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if package == "__init__":
        return
    assert package in LEVEL_OF, f"{package} is not in the layers of ARCHITECTURE.md"
    for found in _imports(path):
        parts = found.name.split(".")
        if parts[0] != "powerinfer" or len(parts) < 2 or parts[1] == package:
            continue
        if parts[1] in LEVEL_OF:
            assert LEVEL_OF[parts[1]] > LEVEL_OF[package], (
                f"{path}:{found.line}: {package} may not import {parts[1]}"
            )


@each_file
def test_reserved_modules(path: Path) -> None:
    where = _shown(path)
    for found in _imports(path):
        for module, allowed in RESERVED.items():
            if module not in found.name.split("."):
                continue
            at = f"{path}:{found.line}"
            assert where.startswith(allowed), f"{at}: only {allowed} import {module}"
            must_be_late = where.startswith(LATE_ONLY.get(module, ()))
            assert found.is_late or not must_be_late, f"{at}: import {module} inside a function"


@pytest.mark.parametrize("path", sorted((SOURCE / "ops").rglob("*.py")), ids=_shown)
def test_backends_know_each_other_as_planned(path: Path) -> None:
    room = path.relative_to(SOURCE / "ops").parts[0]
    allowed = (room, *BACKENDS[room]) if room in BACKENDS else ()
    for found in _imports(path):
        parts = found.name.split(".")
        if parts[:2] == ["powerinfer", "ops"] and len(parts) > 2 and parts[2] in BACKENDS:
            assert parts[2] in allowed, f"{path}:{found.line}: {room} may not import {parts[2]}"


@each_file
def test_only_oracle_users_import_the_oracle(path: Path) -> None:
    if _shown(path).startswith(ORACLE_USERS):
        return
    for found in _imports(path):
        assert not found.name.startswith("powerinfer.ops.reference"), (
            f"{path}:{found.line}: only {ORACLE_USERS} import the oracle"
        )


def test_modules_have_no_circles() -> None:
    """Imports for types alone count: what two modules say of each other cannot be read apart."""
    # The extension has a stub only.
    modules = {_module_name(path): path for path in (*_files(), *SOURCE.rglob("*.pyi"))}
    graph = {
        module: {_imported_module(found.name, modules) for found in _module_level_imports(path)}
        - {module, ""}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=_shown)
def test_launchers_are_annotated(path: Path) -> None:
    """Mypy does not ask it of these files, whose kernels cannot be."""
    for node in ast.parse(path.read_text(encoding="utf8")).body:
        if not isinstance(node, ast.FunctionDef) or _is_kernel(node):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        missing = [argument.arg for argument in arguments if argument.annotation is None]
        missing += [] if node.returns is not None else ["its result"]
        assert not missing, f"{path}:{node.lineno}: annotate {', '.join(missing)}"


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module_level_imports(path: Path) -> list[Import]:
    return [found for found in _imports(path) if not found.is_late]


def _imported_module(name: str, modules: dict[str, Path]) -> str:
    """The module that a name is, or is defined in; empty for what is not ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)
