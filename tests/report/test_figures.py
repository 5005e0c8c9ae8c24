"""The figures: what they draw, that a method looks the same everywhere, that files are reproducible."""

import matplotlib as mpl
import numpy as np
import pytest
from scipy.integrate import trapezoid

from longtail.report import figures, gallery

RNG = np.random.default_rng(0)
METHODS = ("CE", "LogAdj", "ELM")
LOOKS = gallery.styles({"CE": "ce", "LogAdj": "logadj", "ELM": "elm"})
SIZES = {"head": 2, "torso": 1, "tail": 0}


def quantiles(mean: float, n: int = 200) -> dict:
    return {"quantiles": np.quantile(RNG.normal(mean, 1.0, n), np.linspace(0, 1, 101)).tolist(), "n": n}


CURVES = {panel: {m: quantiles(i) for i, m in enumerate(METHODS)} for panel in ("label 10", "label 50", "label 90")}
POINTS = {"x": [0.0, 1.0, 5.0, 6.0], "y": [0.0, 1.0, 2.0, 3.0], "labels": [0, 0, 1, 2]}
NONE = {m: {} for m in METHODS}
ACCURACY = {m: {"all": 0.5, "head": 0.9, "torso": 0.4, "tail": None} for m in METHODS}


def all_figures():
    yield figures.two_moons(POINTS, {"LogAdj": POINTS, "ELM": POINTS}, ["head", "tail", "other"])
    yield figures.group_accuracy(ACCURACY, SIZES, LOOKS, NONE, "data")
    yield figures.margin_distributions(CURVES, LOOKS, "test", "data")
    yield figures.dmax_distributions(CURVES, LOOKS, "data")
    yield figures.tsne({"ELM": POINTS}, ["head", "torso", "tail"], "data")
    yield figures.margin_cdfs(CURVES, LOOKS, "train", "data")
    sweep = {"values": [0, 0.01, 0.1], "accuracy": [0.4, 0.5, 0.3], "std": [None, 0.01, 0.02]}
    yield figures.sensitivity({"λ": sweep}, "#d55e00", LOOKS, {}, "data")
    curve = {"tau": [-1.0, 0.0, 1.0], "head": [0.9, 0.7, 0.4], "tail": [0.1, 0.2, 0.3]}
    yield figures.tradeoff({"CE": curve, "ELM": curve}, LOOKS, "tail", "data")
    yield figures.class_accuracy(
        [500, 50, 5], {"CE": [0.9, 0.5, None], "ELM": [0.8, 0.6, 0.4]}, LOOKS, (100, 20), "data"
    )
    yield figures.training_curves({"head": {"CE": ([1, 2], [2.0, 1.0]), "ELM": ([2], [2.0])}}, LOOKS, "loss", "data")


def test_every_figure_has_axes_with_names_and_leaves_the_settings_alone():
    before = dict(mpl.rcParams)
    for figure in all_figures():
        assert figure.axes
        for ax in figure.axes:
            assert ax.get_xlabel() or all(t.get_text() for t in ax.get_xticklabels())
        assert figure.axes[0].get_ylabel()
        figure.draw_without_rendering()
    assert dict(mpl.rcParams) == before


def test_a_method_has_one_colour_in_all_figures():
    wanted = gallery.COLOURS["elm"]
    bars = figures.group_accuracy(ACCURACY, SIZES, LOOKS, NONE, "data").axes[0].containers
    assert mpl.colors.to_hex(next(c for c in bars if c.get_label() == "ELM")[0].get_facecolor()) == wanted
    for figure in (
        figures.margin_distributions(CURVES, LOOKS, "test", "data"),
        figures.margin_cdfs(CURVES, LOOKS, "test", "data"),
    ):
        for ax in figure.axes:
            assert {line.get_color() for line in ax.lines if line.get_label() == "ELM"} == {wanted}


def test_methods_and_variants_differ_in_more_than_colour():
    looks = gallery.styles({"ELM": "elm", "ELM 2": "elm", "ELM 3": "elm", "mine": "mine", "yours": "yours"})
    assert len({looks[k].color for k in ("ELM", "ELM 2", "ELM 3")}) == 1
    assert len({(looks[k].line, looks[k].hatch) for k in ("ELM", "ELM 2", "ELM 3")}) == 3
    assert looks["mine"].color != looks["yours"].color
    assert len(set(gallery.COLOURS.values())) == len(gallery.COLOURS)


def test_an_empty_group_says_no_classes_and_has_no_bar():
    figure = figures.group_accuracy(ACCURACY, SIZES, LOOKS, NONE, "data")
    assert [t.get_text() for t in figure.axes[0].texts].count("no classes") == 1
    assert all(len(container) == 3 for container in figure.axes[0].containers)


def test_whiskers_are_as_long_as_given_and_end_at_the_top():
    std = {m: {"all": 0.02, "head": 0.0, "torso": None, "tail": None} for m in METHODS}
    ax = figures.group_accuracy(ACCURACY, SIZES, LOOKS, std, "data").axes[0]
    spans = [np.diff(path.vertices[:, 1])[0] for c in ax.collections for path in c.get_paths()]
    assert spans == pytest.approx([4.0] * 3)
    full = {"CE": {"head": 1.0}}
    ax = figures.group_accuracy(full, SIZES, LOOKS, {"CE": {"head": 0.1}}, "data").axes[0]
    assert ax.collections[0].get_paths()[0].vertices[:, 1].tolist() == [90.0, 100.0]


def test_the_accuracy_by_class_runs_from_head_to_tail_and_shades_the_groups():
    ax = figures.class_accuracy([5, 500, 50, 0], {"CE": [0.4, 0.9, None, 0.1]}, LOOKS, (100, 20), "data").axes[0]
    (line,) = [line for line in ax.lines if line.get_label() == "CE"]
    assert line.get_xdata().tolist() == [0.5, 5, 500]  # a class that was not tested has no point
    assert line.get_ydata().tolist() == pytest.approx([10, 40, 90])
    left, right = ax.get_xlim()
    assert left > 500
    assert right < 0.5
    assert {t.get_text() for t in ax.texts} == {"head", "torso", "tail"}


def test_of_many_classes_the_line_is_a_mean_over_neighbours():
    sizes = list(range(1, 101))
    ax = figures.class_accuracy(sizes, {"CE": [n / 100 for n in sizes]}, LOOKS, (100, 20), "data").axes[0]
    (line,) = [line for line in ax.lines if line.get_label() == "CE"]
    assert line.get_ydata()[0] == pytest.approx(np.mean(sizes[:12]))
    assert len(ax.collections[-1].get_offsets()) == 100


def test_densities_integrate_to_one_and_reflect_at_zero():
    for figure in (
        figures.margin_distributions(CURVES, LOOKS, "test", "data"),
        figures.dmax_distributions(CURVES, LOOKS, "data"),
    ):
        for line in (line for ax in figure.axes for line in ax.lines if line.get_label() == "ELM"):
            x, y = line.get_data()
            assert trapezoid(y, x) == pytest.approx(1.0, abs=0.02)
    distances = {"label": {"CE": {"quantiles": np.abs(quantiles(0.0)["quantiles"]).tolist(), "n": 200}}}
    (line,) = figures.dmax_distributions(distances, LOOKS, "data").axes[0].lines
    assert line.get_xdata().min() >= 0


def test_few_samples_are_drawn_one_by_one():
    sample = [0.3, 0.9, 0.4]
    grid = np.quantile(sample, np.linspace(0, 1, 101)).tolist()
    ax = figures.margin_distributions({"tail": {"CE": {"quantiles": grid, "n": 3}}}, LOOKS, "train", "data").axes[0]
    drawn = next(line for line in ax.lines if line.get_label() == "CE")
    assert sorted(drawn.get_xdata()) == pytest.approx(sorted(sample))
    assert "one mark a sample" in [t.get_text() for t in ax.texts]


def test_a_constant_distribution_is_drawn_without_a_warning(recwarn):
    same = {"label": {"CE": {"quantiles": [2.0] * 101, "n": 50}, "ELM": {"quantiles": [0.0] * 101, "n": 50}}}
    for figure in (
        figures.margin_distributions(same, LOOKS, "test", "data"),
        figures.margin_cdfs(same, LOOKS, "test", "data"),
    ):
        figure.draw_without_rendering()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_cdfs_are_the_quantiles():
    ax = figures.margin_cdfs(CURVES, LOOKS, "test", "data").axes[0]
    line = next(line for line in ax.lines if line.get_label() == "CE")
    np.testing.assert_allclose(line.get_xdata(), CURVES["label 10"]["CE"]["quantiles"])
    np.testing.assert_allclose(line.get_ydata(), np.linspace(0, 1, 101))


def test_figures_say_which_split():
    assert "train samples" in figures.margin_distributions(CURVES, LOOKS, "train", "data").axes[0].get_xlabel()
    assert "test samples" in figures.margin_cdfs(CURVES, LOOKS, "test", "data").axes[0].get_xlabel()
    assert "training samples" in figures.dmax_distributions(CURVES, LOOKS, "data").axes[0].get_xlabel()


def test_sensitivity_puts_zero_left_and_words_on_categories():
    sweeps = {
        "λ": {"values": [0, 0.001, 0.1], "accuracy": [0.4, 0.5, 0.3], "std": [None] * 3},
        "α": {"values": ["n", "n^0.5"], "accuracy": [0.4, 0.5], "std": [None] * 2},
    }
    first, second = figures.sensitivity(sweeps, "#d55e00", LOOKS, {"CE": 0.39}, "data").axes
    assert first.lines[0].get_xdata().tolist() == [-4.0, -3.0, -1.0]
    assert [t.get_text() for t in second.get_xticklabels()] == ["n", "n^0.5"]
    assert any(line.get_label() == "CE" and line.get_ydata()[0] == pytest.approx(39) for line in first.lines)


def test_embedding_panels_share_one_scale():
    wide = {"x": [0.0, 100.0], "y": [0.0, 50.0], "labels": [0, 1]}
    data, one, two = figures.two_moons(POINTS, {"LogAdj": wide, "ELM": POINTS}, ["a", "b", "c"]).axes
    assert one.get_xlim() == two.get_xlim()
    assert one.get_ylim() == two.get_ylim()
    assert data.get_xlim() != one.get_xlim()


def test_a_long_title_stays_within_its_panel():
    points = {"x": [0.0, 1.0], "y": [0.0, 1.0], "labels": [0, 1]}
    long = "ELM (memory = 16) · 30 epochs · recipe cifar-cpu"
    panels = {"LogAdj": points, "ELM": points, long: points}
    for figure in (figures.tsne(panels, ["head", "tail"], "data"), figures.two_moons(None, panels, ["a", "b"])):
        figure.canvas.draw()
        last = figure.axes[2].title
        assert last.get_text().replace("\n", " ") == long
        box = last.get_window_extent()
        assert box.x0 > figure.axes[1].title.get_window_extent().x1
        assert box.x1 <= figure.bbox.x1


def test_dollars_in_names_are_dollars_and_no_formula(tmp_path):
    points = {"x": [0.0, 1.0], "y": [0.0, 1.0], "labels": [0, 1]}
    figure = figures.two_moons(None, {"$x^$": points}, ["$5_bills$", "\\frac{$"])
    assert figure.axes[0].get_title() == "$x^$"
    figures.save(figure, tmp_path / "dollars")


def test_saved_files_are_the_same_bytes_each_time(tmp_path):
    for folder in ("a", "b"):
        written = figures.save(figures.group_accuracy(ACCURACY, SIZES, LOOKS, NONE, "data"), tmp_path / folder / "f")
        assert [p.suffix for p in written] == [".png", ".svg", ".pdf"]
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first, second = ((tmp_path / folder / f"f.{kind}").read_bytes() for folder in ("a", "b"))
        assert first.startswith(start)
        assert first == second
