"""Rates of two versions by pairs: what is judged of the seconds."""

from bench.figures.rates import verdict
from bench.rates import interval, judged


def test_the_interval_is_of_order_statistics() -> None:
    # n = 10: P(X <= 1) = 11/1024 <= 2.5 %, P(X <= 2) = 56/1024 is more: second from either end
    ratios = [1.0, 1.1, 0.9, 1.2, 0.8, 1.3, 0.7, 1.4, 0.6, 1.5]
    assert interval(ratios) == (0.7, 1.4)
    # n = 30: 10th and 21st of the sorted ones
    assert interval([float(i) for i in range(30)]) == (9.0, 20.0)


def test_few_pairs_have_all_of_their_range() -> None:
    assert interval([1.0, 2.0, 1.5]) == (1.0, 2.0)
    assert interval([1.25]) == (1.25, 1.25)


def test_a_pair_is_compared_with_itself_alone() -> None:
    # the machine becomes four times slower: medians say nothing, each pair says 1.25
    old, new = [1.25, 2.5, 5.0], [1.0, 2.0, 4.0]
    row = judged(old, new)
    assert (row["ratio"], row["low"], row["high"], row["pairs"]) == (1.25, 1.25, 1.25, 3)
    assert (row["old"], row["new"]) == (2.5, 2.0)


def test_what_pairs_cannot_tell_is_neither_met_nor_missed() -> None:
    assert verdict(0.99, 1.02) == "met"
    assert verdict(0.9, 0.989) == "missed"
    assert verdict(0.98, 1.01) == "within what these pairs can tell"
