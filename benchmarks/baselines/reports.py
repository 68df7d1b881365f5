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
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def read_tests(report: Path) -> Section:
    """What a file of `pytest --junitxml` holds.

    Returns:
        counts by outcome, skips by reason, and for every folder and file of tests the seconds; of
        a file also the number of cases by outcome and test, and the SHA-256 of all ids.
    """
    files: dict[str, Section] = {}
    skips: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        path, name = _place(case)
        outcome, reason = _outcome(case)
        file = files.setdefault(path, {"seconds": 0.0, "ids": set(), "cases": {}})
        file["seconds"] += float(case.get("time", 0))
        file["ids"].add(name)
        cases = file["cases"].setdefault(outcome, Counter())
        cases[name.partition("[")[0]] += 1
        if outcome == "skipped":
            skips[reason.partition(" at /")[0]] += 1
    for file in files.values():
        names = sorted(file.pop("ids"))
        file["sha256"] = hashlib.sha256("\n".join(names).encode()).hexdigest()
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


def _counts(files: Iterable[Section]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for file in files:
        for outcome, cases in file["cases"].items():
            counts[outcome] += sum(cases.values())
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
    """Tests of which fewer cases pass, tests that are gone, packages that are covered less.

    Which cases were skipped depends on the processor; their tests must be there.
    """
    passed, now = _cases(old, "passed"), _cases(new, "passed")
    collected, still = (_cases(each, *each["counts"]) for each in (old, new))
    lines = []
    for place in collected:
        count = _found(now, place, collected)
        if count < passed[place]:
            lines.append(f"{'::'.join(place)}: {count} cases pass after {passed[place]}")
        elif not _found(still, place, collected):
            lines.append(f"{'::'.join(place)} is gone")
    coverage = new.get("coverage", {})
    for name, percent in old.get("coverage", {}).items():
        if coverage.get(name, 0) < percent - _COVERAGE_NOISE:
            lines.append(f"coverage of {name}: {coverage.get(name)} % after {percent} %")
    return lines


def _cases(section: Section, *outcomes: str) -> Counter[_Place]:
    """Number of cases of every test with one of the outcomes."""
    found: Counter[_Place] = Counter()
    for path, file in section["files"].items():
        for outcome in outcomes:
            for name, count in file["cases"].get(outcome, {}).items():
                found[path, name] += count
    return found


def _found(cases: Counter[_Place], place: _Place, known: Counter[_Place]) -> int:
    """Cases of a test where it was, or where one of its name was not known."""
    if place in cases:
        return cases[place]
    return sum(
        count for other, count in cases.items() if other[1] == place[1] and other not in known
    )
