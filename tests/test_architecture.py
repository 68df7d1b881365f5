"""The layers of ARCHITECTURE.md, enforced by walking the syntax trees: imports point down only."""

import ast
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "powerinfer"
KERNELS = SOURCE / "ops" / "gpu" / "kernels"

# Higher may import lower; packages on one line may not import each other.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("orchestra",),
    ("evaluation", "serve", "bench"),
    ("engine",),
    ("scoring",),
    ("prompts", "train"),
    ("loading",),
    ("offload",),
    ("calibration", "sampling"),
    ("convert", "options"),
    ("models",),
    ("kvcache", "predictors", "store"),
    ("ops", "tokenizer", "hub"),
    ("placement",),
    ("gguf", "sidecar"),
    ("quant",),
    ("values", "_plugins", "_files", "_extras"),
    ("_replacing",),
    ("_locks",),
    ("errors", "_version", "_program_end"),
)
LEVEL_OF = {package: level for level, row in enumerate(LEVELS) for package in row}

MOST_MODULES = 20
"""In a folder, `__init__` apart."""
PLUGIN_FOLDERS = (
    "cli/commands",
    "quant/formats",
    "models/architectures",
    "orchestra/primitives",
    "serve/tool_formats",
)
"""They may hold more: each file is named like what it adds."""

# Who alone may import a heavy or private module.
RESERVED = {
    "_core": ("ops/cpu/",),
    "torch": ("ops/gpu/", "ops/hybrid/", "train/", "convert/", "placement/activation_folder.py"),
    "triton": ("ops/gpu/kernels/",),
    "huggingface_hub": ("hub/",),
    "transformers": ("convert/", "train/"),
    "lm_eval": ("evaluation/",),
    "datasets": ("evaluation/",),
    "fastapi": ("serve/",),
    "starlette": ("serve/",),
    "uvicorn": ("serve/",),
    "ray": ("serve/ray/",),
    "prometheus_client": ("serve/",),
    "httpx": ("bench/serving/", "orchestra/"),
    "llguidance": ("sampling/grammar/",),
}

# Who may import a reserved module inside functions only: the base install lacks it, or it is slow.
LATE_ONLY = {
    "torch": ("placement/activation_folder.py",),
    "huggingface_hub": ("hub/",),
    "httpx": ("orchestra/workers/",),
}

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
    "loading/loader.py",
    # to compute in f64 which neurons matter, which predictors are calibrated and measured against;
    "calibration/ground_truth.py",
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


@cache
def _all_imports() -> dict[str, list[Import]]:
    """Imports of every file of the package, by its path below it; each is read once."""
    return {_shown(path): list(_imports(path)) for path in sorted(SOURCE.rglob("*.py"))}


def _shown(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _each_import() -> Iterator[tuple[str, Import]]:
    for where, imports in _all_imports().items():
        yield from ((where, found) for found in imports)


def test_every_package_has_a_level() -> None:
    packages = {where.partition("/")[0].removesuffix(".py") for where in _all_imports()}
    assert packages - {"__init__"} <= set(LEVEL_OF), "not in the layers of ARCHITECTURE.md"


def test_folders_are_small() -> None:
    sizes = Counter(
        where.rpartition("/")[0]
        for where in _all_imports()
        if not where.endswith("__init__.py") and not where.startswith(PLUGIN_FOLDERS)
    )
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_imports_point_down() -> None:
    wrong = []
    for where, found in _each_import():
        package = where.partition("/")[0].removesuffix(".py")
        parts = found.name.split(".")
        if package == "__init__" or parts[0] != "powerinfer" or len(parts) < 2:
            continue
        is_lower = LEVEL_OF.get(parts[1], len(LEVELS)) > LEVEL_OF[package]
        if parts[1] != package and not is_lower:
            wrong.append(f"{where}:{found.line}: {package} may not import {parts[1]}")
    assert not wrong


def test_reserved_modules() -> None:
    wrong = []
    for where, found in _each_import():
        for module in RESERVED.keys() & set(found.name.split(".")):
            if not where.startswith(RESERVED[module]):
                wrong.append(f"{where}:{found.line}: only {RESERVED[module]} import {module}")
            elif where.startswith(LATE_ONLY.get(module, ())) and not found.is_late:
                wrong.append(f"{where}:{found.line}: import {module} inside a function")
    assert not wrong


def test_backends_know_each_other_as_planned() -> None:
    wrong = []
    for where, found in _each_import():
        if not where.startswith("ops/"):
            continue
        room = where.split("/")[1]
        allowed = (room, *BACKENDS[room]) if room in BACKENDS else ()
        parts = found.name.split(".")
        is_of_a_backend = parts[:2] == ["powerinfer", "ops"] and len(parts) > 2
        if is_of_a_backend and parts[2] in BACKENDS and parts[2] not in allowed:
            wrong.append(f"{where}:{found.line}: {room} may not import {parts[2]}")
    assert not wrong


def test_only_oracle_users_import_the_oracle() -> None:
    wrong = [
        f"{where}:{found.line}: only {ORACLE_USERS} import the oracle"
        for where, found in _each_import()
        if found.name.startswith("powerinfer.ops.reference") and not where.startswith(ORACLE_USERS)
    ]
    assert not wrong


def test_modules_have_no_circles() -> None:
    """Imports for types alone count: what two modules say of each other cannot be read apart."""
    # The extension has a stub only.
    modules = {_module_name(where): imports for where, imports in _all_imports().items()}
    modules["powerinfer._core"] = []
    graph = {
        module: {_imported_module(found.name, modules) for found in imports if not found.is_late}
        - {module, ""}
        for module, imports in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_launchers_are_annotated() -> None:
    """Mypy does not ask it of these files, whose kernels cannot be."""
    wrong = []
    for path in sorted(KERNELS.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            if not isinstance(node, ast.FunctionDef) or _is_kernel(node):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            missing = [argument.arg for argument in arguments if argument.annotation is None]
            missing += [] if node.returns is not None else ["its result"]
            wrong += [f"{path}:{node.lineno}: annotate {name}" for name in missing]
    assert not wrong


def test_overlapping_kernels_wait_first() -> None:
    """Before that, what they read may not be written yet."""
    waits = {f"{path.name}:{node.name}": ast.unparse(node.body[1])
             for path in sorted(KERNELS.glob("*.py"))
             for node in ast.parse(path.read_text(encoding="utf8")).body
             if isinstance(node, ast.FunctionDef)
             and "overlapping" in map(ast.unparse, node.decorator_list)}  # fmt: skip
    assert waits
    assert set(waits.values()) == {"begin_small()", "begin_filling()"}, waits


def _module_name(where: str) -> str:
    parts = ("powerinfer/" + where.removesuffix(".py")).split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_module(name: str, modules: Container[str]) -> str:
    """The module that a name is, or is defined in; empty for what is not ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _is_kernel(function: ast.FunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(name.split("(")[0] in ("triton.jit", "overlapping") for name in decorators)
