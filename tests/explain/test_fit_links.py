"""fit_links: the links of a known chip are found from the times of its collectives."""

import itertools
from dataclasses import replace

import pytest

from shardwise.compiler.plan.chip import Link
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.traffic import all_gather, all_reduce, all_to_all, one_hop, reduce_scatter
from shardwise.explain.fit_links import TimedCollective, fit_links, has_data_sheet, is_within_node

BASE = chip("h200")
KNOWN = replace(BASE, fast_link=Link(450e9, 4e-6), link_fraction=0.7, slow_link=Link(40e9, 11e-6))
SIZES = (1 << 14, 1 << 20, 1 << 24, 1 << 28)
WITHIN, BETWEEN = (0, 1, 2, 3), tuple(range(0, 64, 8))


def timed(devices, kinds=(all_gather, all_reduce, all_to_all, reduce_scatter), sizes=SIZES, known=KNOWN):
    """Return collectives with the times that the known chip takes."""
    for kind, size in itertools.product(kinds, sizes):
        traffic = kind(size) if kind is one_hop else kind(size, len(devices))
        yield TimedCollective(devices, traffic, known.ring_of(devices).time(traffic))


def test_collectives_within_a_node_determine_the_fast_link():
    found = fit_links(BASE, list(timed(WITHIN)))
    assert found.fast_link.latency == pytest.approx(4e-6, rel=1e-6)
    assert found.link_fraction == pytest.approx(0.7, rel=1e-6)
    assert found.slow_link == BASE.slow_link


def test_collectives_between_nodes_determine_the_slow_link():
    # 16 devices in two nodes have hops of both kinds; groups with one device per node have trees of their own.
    both = tuple(range(16))
    collectives = [*timed(WITHIN), *timed(BETWEEN), *timed(both)]
    found = fit_links(BASE, collectives)
    assert found.slow_link.bandwidth == pytest.approx(40e9, rel=1e-6)
    assert found.slow_link.latency == pytest.approx(11e-6, rel=1e-6)
    assert found.link_fraction == pytest.approx(0.7, rel=1e-6)


def test_collectives_of_one_size_do_not_determine_the_latency():
    known = replace(KNOWN, fast_link=Link(450e9, BASE.fast_link.latency))
    found = fit_links(BASE, list(timed(WITHIN, (all_gather,), (1 << 24,), known)))
    assert found.fast_link.latency == BASE.fast_link.latency
    assert found.link_fraction == pytest.approx(0.7, rel=1e-6)


def test_links_that_no_collective_uses_stay():
    assert fit_links(BASE, []) is BASE
    found = fit_links(BASE, list(timed(BETWEEN)))
    assert (found.fast_link, found.link_fraction) == (BASE.fast_link, BASE.link_fraction)
    assert found.slow_link.bandwidth == pytest.approx(40e9 * 0.7 / BASE.link_fraction, rel=1e-6)


def test_chips_and_nodes():
    assert has_data_sheet(BASE) and not has_data_sheet(chip("cpu")) and not has_data_sheet(replace(BASE, name="mine"))
    assert is_within_node(BASE, (8, 15)) and not is_within_node(BASE, (7, 8))
