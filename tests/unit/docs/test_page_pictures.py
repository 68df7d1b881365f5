"""The pictures of the pages: complete, made of the results, and nothing in them is loaded."""

import json
import re
import statistics
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages import PAGES, ROOT

IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
SVG = "{http://www.w3.org/2000/svg}"
# Drawn by matplotlib, whose background is a path.
PLOTS = (
    "activation-frequency",
    "decode-speed",
    "error-by-density",
    "sparsify-budgets",
    "sparsity-per-layer",
)
PICTURES = sorted(IMAGES.glob("*.svg"))

pictures = pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)


def _words(path: Path) -> str:
    """All texts of a picture, in their order."""
    texts = ElementTree.parse(path).getroot().iter(f"{SVG}text")
    return " ".join("".join(text.itertext()) for text in texts).replace("\xa0", " ")


@pictures
def test_a_picture_brings_its_own_background(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    if path.stem in PLOTS:
        first = next(root.iter(f"{SVG}path"))
        ends = [float(number) for number in re.findall(r"[\d.]+", first.attrib["d"])]
        assert (max(ends[::2]), max(ends[1::2])) == (width, height)
        assert (min(ends[::2]), min(ends[1::2])) == (left, top)
        assert first.attrib["style"] == "fill: #ffffff"
        return
    first = next(each for each in root if each.tag == f"{SVG}rect")
    assert float(first.attrib["width"]) > 0.97 * width
    assert float(first.attrib["height"]) > 0.97 * height
    # Of the class that follows a dark page, or one colour.
    assert first.get("class") == "page" or re.fullmatch("#[0-9a-f]{6}", first.attrib["fill"])


@pictures
def test_a_picture_is_small_and_loads_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"""url\((?!#)|@import|@font-face|href=["'](?!#)""", text)
    assert len(text) < 96 * 1024


@pictures
def test_a_page_shows_the_picture(path: Path) -> None:
    assert any(path.name in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_chart_shows_every_measured_ratio() -> None:
    words = _words(IMAGES / "decode-speed.svg")
    results = [
        result
        for path in (RESULTS / "intel-xeon-avx512").glob("*.json")
        for result in json.loads(path.read_text(encoding="utf-8"))["results"]
    ]
    sparse = [result["kinds"]["mlp"]["against"] for result in results if "kinds" in result]
    dense = [result["against"] for result in results if "pairs" in result]
    assert (len(sparse), len(dense)) == (8, 4)
    for against in (*sparse, *dense):
        assert f"{against['llama.cpp']['decode']['ratio']:.2f}×" in words
    speeds = [
        [run[side]["decode_tokens_per_s"] for side in ("original", "llama.cpp")]
        for result in results
        for run in result.get("rounds", ())
        if "original" in run
    ]
    assert len(speeds) == 6
    for rounds in (speeds[:3], speeds[3:]):
        assert f"{statistics.median(ours / peer for ours, peer in rounds):.2f}×" in words
    for path in (RESULTS / "amd-zen4").glob("llama-7b-*.json"):
        (result,) = json.loads(path.read_text(encoding="utf-8"))["results"]
        ours, peer = (
            statistics.median(pair[side]["decode_tokens_per_s"] for pair in result["pairs"])
            for side in ("ours", "llama.cpp")
        )
        assert f"{ours / peer:.2f}×" in words
    assert "the original: ReluLLaMA-7B, Q4_0" in words


def test_bars_are_as_long_as_their_ratios() -> None:
    drawn = ElementTree.parse(IMAGES / "decode-speed.svg").getroot()
    paths = [
        path.attrib["d"]
        for group in drawn.iter(f"{SVG}g")
        if group.get("id", "").startswith("bar: ")
        for path in group.iter(f"{SVG}path")
    ]
    values = [
        float(words[:-1])
        for each in drawn.iter(f"{SVG}text")
        if "700" in each.get("style", "") and (words := "".join(each.itertext())).endswith("×")
    ]
    assert len(paths) == len(values) > 10
    corners = [[float(number) for number in re.findall(r"[\d.]+", path)] for path in paths]
    lengths = [max(numbers[::2]) - min(numbers[::2]) for numbers in corners]
    units = [length / value for length, value in zip(lengths, values, strict=True)]
    assert max(units) == pytest.approx(min(units), rel=0.01)


@pytest.mark.parametrize("name", ["decode-speed.svg", "sparsify-budgets.svg"])
def test_plots_of_results_are_the_same_bytes_each_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from figures.pictures import PICTURES

    picture = PICTURES[name]()
    assert picture.svg() == picture.svg()
    assert picture.is_shown_by((IMAGES / name).read_text(encoding="utf-8"))
    assert not picture.is_shown_by((IMAGES / "idea.svg").read_text(encoding="utf-8"))


def test_the_plan_says_that_its_gpu_is_assumed() -> None:
    assert "GPU: NVIDIA RTX 4090 (assumed)" in _words(IMAGES / "plan.svg")
