"""Pytest plug-in: which of the collected tests run. `--all` runs every one of them.

Otherwise tests marked `thorough` are left out, and without `--slow` those marked `slow`. Of a test
with three parameters or more runs a selection in which every pair of values occurs (`pairwise.py`);
of one marked `each_value` one in which every value does.
A case that is asked for by its id always runs.
"""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from native_cases import ALL_KERNELS, KERNELS
from pairwise import covering_cases

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_thinned: dict[str, int] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slow` and `--all`."""
    parser.addoption("--slow", action="store_true", help="also run tests marked slow, as CI does")
    parser.addoption(
        "--all",
        action="store_true",
        help="also run tests marked slow or thorough and every combination of parameters",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "slow: takes a second or more; runs with --slow, as in CI")
    config.addinivalue_line(
        "markers", "each_value: every value of a parameter runs, every pair with --all only"
    )
    config.addinivalue_line("markers", "thorough: runs with --all only, because it takes long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only `--slow` or `--all` runs."""
    if config.getoption("--all"):
        return
    named = {argument.partition("::")[2] for argument in config.args} - {""}
    if any("[" in name for name in named):
        return
    left_markers = ("thorough",) if config.getoption("--slow") else ("slow", "thorough")
    marked = {
        item: name for name in left_markers for item in items if item.get_closest_marker(name)
    }
    quick = [item for item in items if item not in marked]
    chosen = set(_covering(quick))
    left_out = [item for item in items if item not in chosen]
    items[:] = [item for item in items if item in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    counts = Counter(marked.values())
    counts["combinations"] = len(quick) - len(items)
    # A worker hands it to the process that prints.
    getattr(config, "workeroutput", {})["thinned"] = dict(counts)
    _thinned.update(counts)


def _covering(items: list[pytest.Item]) -> list[pytest.Item]:
    """Items in which every pair of parameters of a test occurs, or every value of each."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    return [
        group[index]
        for group in groups.values()
        for index in covering_cases(
            [_values(item) for item in group],
            together=1 if group[0].get_closest_marker("each_value") else 2,
        )
    ]


def _values(item: pytest.Item) -> tuple[int, ...]:
    """Numbers of the values of a test's parameters: the same object has the same number."""
    call = getattr(item, "callspec", None)
    return tuple(id(value) for value in call.params.values()) if call else ()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: "WorkerController") -> None:
    """Take over what a worker left out; all leave out the same."""
    _thinned.update(getattr(node, "workeroutput", {}).get("thinned", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many more tests `--slow` and `--all` run, and on which kernels none ran."""
    absent = ", ".join(name for name in ALL_KERNELS if name not in KERNELS)
    terminalreporter.write_line(
        f"kernels tested: {', '.join(KERNELS)}; not on this processor: {absent}"
    )
    if slow := _thinned.get("slow"):
        terminalreporter.write_line(f"scripts/test --slow runs {slow} more tests, as CI does")
    if more := sum(_thinned.values()):
        terminalreporter.write_line(
            f"scripts/test --all runs {more} more tests and combinations of parameters"
        )
