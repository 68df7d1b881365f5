"""Plots: both formats, the same bytes each time, nothing cut off, and what they were made from."""

import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from powerinfer.bench import calibration_plots, placement_plots
from powerinfer.bench.figures import Drawing, draw_all
from powerinfer.errors import CalibrationError, PlacementError
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.solvers import BudgetPoint
from powerinfer.predictors import LayerChoice
from powerinfer.predictors.calibration import Calibration, CurvePoint, Dial, LayerCalibration

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

CALIBRATION_PLOTS = (
    "activation-frequency",
    "sparsity-per-layer",
    "error-by-density",
    "recall-by-density",
)
_MIB = 1 << 20


def _point(density: float, recall: float, error: float) -> CurvePoint:
    return CurvePoint((density,), density, recall, 0.5, error, 1.0, 1.2 * error)


def _layer(number: int, kind: str) -> LayerCalibration:
    curves = {
        name: tuple(
            _point(
                min(1.0, width * (0.1 + 0.1 * number) * 2**-step), 1 - 0.1 * step, 3e-4 * 4**step
            )
            for step in range(5)
        )
        for name, width in (("sign", 4.0), ("lowbit:3", 1.0))
    }
    chosen = curves[kind][2].thresholds if kind in curves else ()
    return LayerCalibration(
        num_active=np.arange(64, dtype=np.int64) * (number + 1),
        mean=np.zeros(8, np.float32),
        variance=np.ones(8, np.float32),
        curves=MappingProxyType(curves),
        choice=LayerChoice(kind, chosen),
    )


def _calibration(kinds: tuple[str, ...] = ("lowbit:3", "exact", "sign")) -> Calibration:
    layers = tuple(_layer(number, kind) for number, kind in enumerate(kinds))
    return Calibration("0" * 64, "relu", "stories.txt", 200, Dial(max_ffn_error=0.01), layers)


def _plan() -> PlacementPlan:
    hot = [np.arange(count, dtype=np.int32) for count in (64, 20, 0)]
    layers = (
        LayerPlacement(has_attention=True, has_predictor=False, hot=hot[0]),
        LayerPlacement(has_attention=True, has_predictor=False, hot=hot[1]),
        LayerPlacement(has_attention=False, has_predictor=False, hot=hot[2]),
    )
    return PlacementPlan("0" * 64, "latency", 678 * _MIB, 64, has_output=True, layers=layers)


def _points() -> list[BudgetPoint]:
    found = [BudgetPoint(0, _plan(), 0.01, 0.0)]
    found += [BudgetPoint(step * 100 * _MIB, _plan(), 0.008 / step, step / 9) for step in (7, 8, 9)]
    return found


def _draw_calibration(folder: Path) -> list[Path]:
    return calibration_plots.draw_plots(_calibration(), folder, model="stories.gguf")


def _draw_plan(folder: Path) -> list[Path]:
    facts = ("stories.gguf", "GPU: a card (assumed)", "CPU: a processor")
    return placement_plots.draw_placement_plots(_plan(), _points(), folder, facts)


_DRAW = {"calibration": _draw_calibration, "plan": _draw_plan}
each = pytest.mark.parametrize("what", list(_DRAW))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The plots of both, drawn once; their folders are made."""
    root = tmp_path_factory.mktemp("plots")
    return {what: draw(root / what / "new") for what, draw in _DRAW.items()}


def _texts(path: Path) -> set[str]:
    """What an SVG says; matplotlib writes every text as a comment beside its outline."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))


@each
def test_both_formats_on_an_opaque_page(what: str, drawn: dict[str, list[Path]]) -> None:
    from matplotlib.image import imread

    files = drawn[what]
    assert [path.suffix for path in files] == [".png", ".svg"] * (len(files) // 2)
    assert len({path.stem for path in files}) == len(files) // 2
    for path in files:
        if path.suffix == ".png":
            pixels = imread(path)
            corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
            np.testing.assert_array_equal(corners[:, :3], 1)
            np.testing.assert_array_equal(pixels[..., 3:], 1)
        else:
            content = path.read_text(encoding="utf-8")
            assert len(content) < 200_000
            assert "dc:date" not in content
            assert "fill: #ffffff" in content


@pytest.mark.slow
@each
def test_the_same_bytes_whatever_the_user_likes(
    what: str, drawn: dict[str, list[Path]], tmp_path: Path
) -> None:
    first = [path.read_bytes() for path in drawn[what]]
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white"}):
        liked = dict(matplotlib.rcParams)
        second = [path.read_bytes() for path in _DRAW[what](tmp_path)]
        assert dict(matplotlib.rcParams) == liked
    assert first == second


def test_a_calibration_says_what_it_was_made_from(drawn: dict[str, list[Path]]) -> None:
    files = drawn["calibration"]
    assert [path.stem for path in files[::2]] == list(CALIBRATION_PLOTS)
    for path in files[1::2]:
        assert (
            "density, error and recall: about half of the tokens · chosen for FFN error 0.01"
        ) in _texts(path)
        assert (
            "stories.gguf · 3 layers of 64 neurons · activation relu · 200 tokens of stories.txt"
            in _texts(path)
        )
    frequency, layers, errors, recalls = (_texts(path) for path in files[1::2])
    assert {"one layer", "mean of all layers"} <= frequency
    assert any(text.endswith("% of the neurons make 80 % of the activations") for text in frequency)
    assert {
        "fire (are not zero)",
        "density: let pass by the chosen predictor (FFN error 0.01)",
    } <= layers
    assert "without a predictor (exact): each gate is computed" in layers
    assert {"sign", "lowbit:3", "the dial, 0.01"} <= errors
    assert {"sign", "lowbit:3"} <= recalls
    assert any(text.startswith("neurons that fire, ") for text in errors & recalls)


@pytest.mark.slow
def test_a_dial_of_recall_is_drawn_where_recall_is(tmp_path: Path) -> None:
    calibration = replace(_calibration(), dial=Dial(recall=0.9))
    files = calibration_plots.draw_plots(calibration, tmp_path, model="m")
    assert "the dial, 90 %" in _texts(files[-1])
    assert not any(text.startswith("the dial") for text in _texts(files[-3]))


def test_a_plan_says_what_it_assumes(drawn: dict[str, list[Path]]) -> None:
    files = drawn["plan"]
    for path in files[1::2]:
        said = " · ".join(sorted(_texts(path)))
        for fact in ("stories.gguf", "GPU: a card (assumed)", "3 layers of 64", "solver latency"):
            assert fact in said
    layers, covered, speed = (_texts(path) for path in files[1::2])
    assert {"neurons on the GPU", "attention on the CPU"} <= layers
    assert "Neurons on the GPU, with 678.0 MiB" in layers
    assert {"a plan for each budget", "this plan, 678.0 MiB"} <= covered & speed
    assert "the CPU alone, 100 tokens/s" in speed
    assert "GPU memory for everything (MiB)" in covered & speed


def _axes() -> Axes:
    return Figure().add_subplot()


@pytest.mark.parametrize("num_layers", [1, 3, 80])
def test_no_bar_is_cut_off(num_layers: int) -> None:
    kinds = ("lowbit:3", "exact", "sign")
    axes = _axes()
    calibration = _calibration(tuple(kinds[n % 3] for n in range(num_layers)))
    calibration_plots._draw_layers(calibration, axes)
    of_plan = _axes()
    placement_plots._draw_layers(_plan(), of_plan)
    for drawn, count in ((axes, num_layers), (of_plan, 3)):
        left, right = drawn.get_xlim()
        _, top = drawn.get_ylim()
        bars = [
            patch.get_extents().transformed(drawn.transData.inverted()) for patch in drawn.patches
        ]
        assert len(bars) == count
        assert all(left < bar.x0 and bar.x1 < right and bar.y1 < top for bar in bars)
        for collection in drawn.collections:
            for path in collection.get_paths():
                points = np.asarray(path.vertices)
                assert (left < points[:, 0]).all()
                assert (points[:, 0] < right).all()
                assert (points[:, 1] < top).all()


def test_a_kind_looks_the_same_whatever_else_was_measured() -> None:
    """So that plots of two runs compare; and no line hides another."""
    looks: list[dict[str, tuple[object, object]]] = []
    all_kinds = ("eight", "sign", "lowbit:2", "lowbit:3", "lowbit:4", "sign+lowbit:2", "mlp")
    for kinds in (all_kinds, all_kinds[::-1], ("lowbit:3", "sign", "eight")):
        calibration = _calibration(("exact",))
        (layer,) = calibration.layers
        curves = MappingProxyType(dict.fromkeys(kinds, layer.curves["sign"]))
        axes = _axes()
        layers = (replace(layer, curves=curves),)
        calibration_plots._draw_recalls(replace(calibration, layers=layers), axes)
        lines = {str(line.get_label()): line for line in axes.get_lines()}
        looks.append(
            {kind: (lines[kind].get_color(), lines[kind].get_linestyle()) for kind in kinds}
        )
        order = [str(line.get_label()) for line in axes.get_lines()]
        if "sign+lowbit:2" in kinds:
            assert order.index("sign+lowbit:2") > order.index("lowbit:2")
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == len(all_kinds)
    assert looks[2] == {kind: looks[0][kind] for kind in looks[2]}


def test_lines_go_through_what_was_measured() -> None:
    """Density by the error that is kept; nothing is drawn beyond what was measured."""
    axes = _axes()
    calibration = _calibration(("sign",))
    calibration_plots._draw_errors(calibration, axes)
    (line,) = (line for line in axes.get_lines() if line.get_label() == "lowbit:3")
    density, error = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    points = calibration.layers[0].curves["lowbit:3"]
    limits = [point.ffn_error_high for point in points]
    is_drawn = np.isfinite(density)
    np.testing.assert_array_equal(is_drawn, (error >= min(limits)) & (error <= max(limits)))
    assert not is_drawn.all()
    inside = [point for point in points if error[0] < point.ffn_error_high < max(limits)]
    assert len(inside) >= 3
    for point in inside:
        found = np.interp(point.ffn_error_high, error[is_drawn], density[is_drawn])
        assert found == pytest.approx(100 * point.density, rel=0.03)


def test_names_that_the_font_or_its_mathematics_would_spoil(tmp_path: Path) -> None:
    drawing = Drawing("empty", "a title", lambda _axes: None)
    facts = ("$\\frac$.gguf", "模型", "x" * 300)
    _, svg = draw_all([drawing], tmp_path, facts, error=CalibrationError)
    said = " ".join(_texts(svg))
    assert "$\\frac$.gguf" in said
    assert f"{'x' * 80}..." in said
    assert "x" * 81 not in said


@pytest.mark.parametrize("error", [CalibrationError, PlacementError])
def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, error: type[CalibrationError] | type[PlacementError]
) -> None:
    (tmp_path / "empty.svg").mkdir()
    with pytest.raises(error, match=r"empty\.svg: cannot write"):
        draw_all([Drawing("empty", "t", lambda _axes: None)], tmp_path, ["m"], error=error)
