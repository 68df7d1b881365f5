"""What Python needs of the file system to start."""

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Files", "python_files"]


@dataclass(frozen=True)
class Files:
    """Parts of the file system that a sandbox shows, all of them read-only.

    Attributes:
        python: path of the interpreter, a file and not a link.
        binds: files and folders, by their paths inside.
        links: targets of symbolic links, by their paths inside.
    """

    python: Path
    binds: dict[Path, Path]
    links: dict[Path, str]


def python_files() -> Files:
    """Find this interpreter, its library, and the folders of shared libraries.

    Nothing in a virtual environment is among them, and no folder of users, unless Python is
    installed in one.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    python = Path(base).resolve()
    prefix = Path(sys.base_prefix).resolve()
    files = Files(python, {}, {})
    system = [Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    for path in (*system, prefix / "lib", prefix / sys.platlibdir, python):
        if path.is_symlink():
            files.links[path] = str(path.readlink())
        elif path.exists() and not _is_within(path, files.binds):
            files.binds[path] = path
    # Where the loader finds libraries that are elsewhere.
    for path in (Path("/etc/ld.so.cache"), Path("/dev/null"), Path("/dev/urandom")):
        if path.exists():
            files.binds[path] = path
    return files


def _is_within(path: Path, binds: dict[Path, Path]) -> bool:
    return any(path == bound or bound in path.parents for bound in binds)
