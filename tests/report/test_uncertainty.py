"""Intervals of differences: right as often as they say, and chance alone hardly ever gives a verdict."""

import numpy as np
import pytest
from scipy import stats

from longtail.report.uncertainty import Difference, Source, half_width, holm, mean, paired_source, seed_source


def test_no_verdict_from_chance_alone():
    """Under the null, over 1 to 5 seeds a side and spreads up to eight times as large on one of them."""
    rng = np.random.default_rng(0)
    trials = 500
    quantile = {n: stats.t.ppf(0.975, n) for n in range(1, 6)}
    for first in range(1, 6):
        for second in range(first, 6):
            for ratio in (1 / 8, 1, 8):
                a, b = rng.normal(size=(trials, first)), ratio * rng.normal(size=(trials, second))
                false = 0
                for one, two in zip(a, b):
                    source = seed_source(one, two)
                    if source is None:
                        assert min(first, second) == 1
                        continue
                    gap = one.mean() - two.mean()
                    false += abs(gap) > quantile[source.freedom] * source.error
                # 5 % and what so many trials may add by chance, once in a thousand
                assert false <= stats.binom.ppf(0.999, trials, 0.05), (first, second, ratio, false / trials)


def test_the_mean_of_several_differences_covers_the_truth():
    """Four amounts of three seeds, whose spreads differ, and one test set that all of them share."""
    rng = np.random.default_rng(0)
    trials, missed, narrower = 1000, 0, 0
    for _ in range(trials):
        of_test = rng.normal(scale=0.3)
        found = []
        for spread in (0.2, 0.5, 1.0, 1.0):
            gaps = 1 + of_test + rng.normal(scale=spread, size=3)
            found.append(Difference(gaps.mean(), (paired_source(gaps), Source(0.3)), tuple(gaps), 3, ""))
        half = half_width(mean(found).sources)
        missed += abs(mean(found).value - 1) > half
        narrower += half < np.mean([half_width(d.sources) for d in found])
    assert missed <= stats.binom.ppf(0.999, trials, 0.05)
    assert narrower > 0.95 * trials


def test_the_mean_of_several_by_hand():
    one = Difference(0.02, (Source(0.01, 2), Source(0.003)), (0.01, 0.03), 2, "")
    two = Difference(0.04, (Source(0.02, 4), Source(0.005)), (0.04,), 2, "")
    whole = mean([one, two])
    of_seeds, of_test = whole.sources
    assert (whole.value, whole.by_seed) == (pytest.approx(0.03), (0.01, 0.03, 0.04))
    assert of_seeds.error == pytest.approx(np.sqrt(0.01**2 + 0.02**2) / 2)
    assert of_seeds.freedom == pytest.approx((0.01**2 + 0.02**2) ** 2 / (0.01**4 / 2 + 0.02**4 / 4))
    assert (of_test.error, of_test.freedom) == (pytest.approx(0.004), np.inf)
    assert mean([one, Difference(0.04, (Source(0.005),), (), 1, "")]) is None
    assert mean([]) is None


def test_one_seed_gives_an_estimate_and_no_verdict():
    rng = np.random.default_rng(1)
    for _ in range(200):  # a real spread of seeds of 1.2 points, test samples that say ±0.3: a verdict would be chance
        gap = float(rng.normal(0, 0.012 * 2**0.5))
        found = Difference(gap, (Source(0.0015),), (gap,), 1, "")
        assert (found.p, found.verdict()) == (None, "one seed: undecided")
        assert found.interval is not None


def test_the_verdict_agrees_with_the_interval():
    rng = np.random.default_rng(2)
    for _ in range(300):
        sources = (Source(float(rng.uniform(0.1, 2)), int(rng.integers(1, 6))), Source(float(rng.uniform(0, 1))))
        found = Difference(float(rng.normal(0, 4)), sources, (), 3, "")
        low, high = found.interval
        assert (found.verdict() == "undecided") == (low <= 0 <= high), found
        assert found.p in (1.0, 1e-12) or half_width(sources, found.p) == pytest.approx(abs(found.value), rel=1e-6)
        assert found.verdict(p=0.2) == "undecided"


def test_welch_is_scipy_s_where_it_is_not_capped():
    a, b = [1.0, 2.0, 2.5, 3.0, 2.0], [1.0, 1.1, 5.0, 4.0, 3.0]
    source = seed_source(a, b)
    test = stats.ttest_ind(a, b, equal_var=False)
    assert source.error == pytest.approx(abs(np.mean(a) - np.mean(b)) / abs(test.statistic))
    assert source.freedom == min(int(test.df), 5)
    assert seed_source(a, b[:2]).freedom == 1
    assert seed_source(a, b[:1]) is None
    gaps = np.subtract(a, b)
    assert paired_source(gaps).error == pytest.approx(stats.sem(gaps))
    assert paired_source(gaps[:1]) is None


def test_holm_is_that_of_the_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.9, 0.8]) == [None, 1.0, 1.0]


def test_few_seeds_are_listed_and_of_many_it_is_said_how_many_agree():
    def points(by_seed):
        return Difference(0.0123, (Source(0.005 / 1.959964),), by_seed, len(by_seed), "").points()

    start = "+1.23 points [+0.73, +1.73]"
    assert points((0.0123,)) == start
    assert points((-0.01, 0.0346)) == f"{start}, by seed -1.00, +3.46"
    assert points((-0.01, *[0.0162] * 6)) == f"{start}, same sign in 6 of 7 seeds"
