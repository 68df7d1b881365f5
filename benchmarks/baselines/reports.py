"""Tests that ran, as pytest's reports tell: ids, skips, seconds, coverage."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from baselines.origin import Section

__all__ = ["below", "read_coverage", "read_tests"]

# Lines that only some timings of threads reach come and go.
_COVERAGE_NOISE = 0.1
# The id of a file that is skipped as a whole.
_WHOLE_FILE = "(file)"
_Place = tuple[str, str]
_Tests = dict[_Place, set[str]]
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def read_tests(report: Path) -> Section:
    """What a file of `pytest --junitxml` holds.

    Returns:
        counts by outcome, skips by reason, and for every folder and file of tests the seconds; of
        a file also the ids by outcome and test, and the SHA-256 of all of them.
    """
    files: dict[str, Section] = {}
    skips: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        path, name = _place(case)
        outcome, reason = _outcome(case)
        file = files.setdefault(path, {"seconds": 0.0, "ids": defaultdict(set)})
        file["seconds"] += float(case.get("time", 0))
        file["ids"][outcome].add(name)
        if outcome == "skipped":
            skips[reason.partition(" at /")[0]] += 1
    for file in files.values():
        names = sorted(set().union(*file["ids"].values()))
        file["sha256"] = hashlib.sha256("\n".join(names).encode()).hexdigest()
        file["ids"] = {outcome: _by_test(ids) for outcome, ids in sorted(file["ids"].items())}
        file["seconds"] = round(file["seconds"], 2)
    return {
        "counts": _counts(files.values()),
        "skips": dict(sorted(skips.items())),
        "folders": _folders(files),
        "files": dict(sorted(files.items())),
    }


def _place(case: ElementTree.Element) -> tuple[str, str]:
    """File below tests, and id in it."""
    name, dotted = case.get("name", ""), case.get("classname", "")
    parts = (dotted or name).split(".")
    end = next(i for i, part in enumerate(parts) if part.startswith("test_")) + 1
    path = "/".join(parts[parts[0] == "tests" : end]) + ".py"
    return path, "::".join([*parts[end:], name]) if dotted else _WHOLE_FILE


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for child in case:
        if child.tag in _OUTCOMES:
            return _OUTCOMES[child.tag], child.get("message", "")
    return "passed", ""


def _by_test(ids: Iterable[str]) -> dict[str, list[str]]:
    """The parameters of every test's cases; none for one without parameters."""
    tests: dict[str, list[str]] = {}
    for each in sorted(ids):
        name, is_case, parameters = each.partition("[")
        tests.setdefault(name, []).extend([parameters.removesuffix("]")] if is_case else [])
    return tests


def _counts(files: Iterable[Section]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for file in files:
        for outcome, tests in file["ids"].items():
            counts[outcome] += sum(max(1, len(cases)) for cases in tests.values())
    return dict(sorted(counts.items()))


def _folders(files: dict[str, Section]) -> dict[str, Section]:
    members: dict[str, list[Section]] = defaultdict(list)
    for path, file in files.items():
        members[path.rpartition("/")[0] or "."].append(file)
    return {
        folder: {"seconds": round(sum(file["seconds"] for file in inside), 1), **_counts(inside)}
        for folder, inside in sorted(members.items())
    }


def read_coverage(report: Path) -> Section:
    """Percent of lines and branches by package, from a file of `coverage json`."""
    reached: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path, file in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        package, _, rest = path.rpartition("powerinfer/")[2].partition("/")
        summary = file["summary"]
        for name in (package if rest else ".", "all"):
            reached[name] += summary["covered_lines"] + summary["covered_branches"]
            total[name] += summary["num_statements"] + summary["num_branches"]
    return {name: round(100 * reached[name] / count, 2) for name, count in sorted(total.items())}


def below(old: Section, new: Section) -> list[str]:
    """Cases that passed and do not now, tests that are gone, packages that are covered less.

    Which cases were skipped depends on the processor; their tests must be there.
    """
    passed, now = _tests(old, "passed"), _tests(new, "passed")
    collected, still = (_tests(each, *each["counts"]) for each in (old, new))
    lines = []
    for place, cases in collected.items():
        gone = sorted(passed.get(place, set()) - _cases(now, place, collected))
        if gone:
            example = f", such as [{gone[0]}]" if gone[0] else ""
            lines.append(f"{'::'.join(place)}: of {len(cases)} {len(gone)} pass no more{example}")
        elif not _cases(still, place, collected):
            lines.append(f"{'::'.join(place)} is gone")
    coverage = new.get("coverage", {})
    for name, percent in old.get("coverage", {}).items():
        if coverage.get(name, 0) < percent - _COVERAGE_NOISE:
            lines.append(f"coverage of {name}: {coverage.get(name)} % after {percent} %")
    return lines


def _tests(section: Section, *outcomes: str) -> _Tests:
    """Cases of every test with one of the outcomes; '' for one without parameters."""
    tests: _Tests = defaultdict(set)
    for path, file in section["files"].items():
        for outcome in outcomes:
            for name, cases in file["ids"].get(outcome, {}).items():
                tests[path, name] |= set(cases) or {""}
    return dict(tests)


def _cases(tests: _Tests, place: _Place, known: _Tests) -> set[str]:
    """Cases of a test where it was, or where one of its name was not known."""
    if place in tests:
        return tests[place]
    moved = (other for other in tests if other[1] == place[1] and other not in known)
    return set().union(*(tests[other] for other in moved))
