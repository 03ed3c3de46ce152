"""Times of products, kernels and collectives against the formulas, and the links of rings."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.plan.chip import Chip, Link
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import all_reduce, one_hop

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
IDEAL = Chip("ideal", (), 1e12, 5e11, 10**9, 1e11, Link(1e10, 1e-6), Link(1e9, 1e-5), 8)


def test_a_ring_uses_the_slowest_link_that_it_crosses():
    mesh = AbstractMesh((4, 8), ("node", "gpu"))
    h100 = chip("h100")
    fast, slow = h100.fast_link.latency, h100.slow_link.latency
    assert h100.ring(mesh, ("gpu",)).latency == fast
    assert h100.ring(mesh, ("node",)).latency == slow
    assert h100.ring(mesh, ("gpu", "node")).latency == slow
    assert h100.ring(AbstractMesh((2, 4), ("a", "b")), ("a",)).latency == fast
    assert h100.ring(AbstractMesh((1, 8), ("a", "b")), ("a",)).latency == fast
    assert chip("v5p").ring(mesh, ("node",)).latency == chip("v5p").fast_link.latency


def test_a_ring_between_nodes_uses_the_slow_links_of_all_its_devices_in_a_node():
    mesh = AbstractMesh((4, 2, 4), ("node", "pair", "gpu"))
    assert IDEAL.ring(mesh, ("gpu",)).bandwidth == IDEAL.ring(mesh, ("pair", "gpu")).bandwidth == 1e10
    assert IDEAL.ring(mesh, ("node",)).bandwidth == 1e9
    assert IDEAL.ring(mesh, ("node", "pair")).bandwidth == 2e9
    assert IDEAL.ring(mesh, ("node", "pair", "gpu")).bandwidth == 8e9
    whole = replace(IDEAL, slow_link=Link(2e9, 1e-5))
    assert whole.ring(mesh, ("node", "pair", "gpu")).bandwidth == 1e10  # no more than the fast links
    assert replace(IDEAL, link_fraction=0.5).ring(mesh, ("node",)).bandwidth == 5e8
    half = AbstractMesh((2, 16), ("a", "b"))  # b fills two nodes
    assert IDEAL.ring(half, ("b",)).bandwidth == 8e9
    assert IDEAL.ring(half, ("a",)).bandwidth == 1e9


def test_a_collective_takes_its_bytes_and_a_latency_per_hop():
    mesh = AbstractMesh((8,), ("x",))
    assert IDEAL.collective_time(all_reduce(1e7 * 4 / 7, 8), mesh, ("x",)) == pytest.approx(1e-3 + 14e-6)
    assert IDEAL.collective_time(all_reduce(1e2 * 4 / 7, 8), mesh, ("x",)) == pytest.approx(2e2 / 1e10 + 6e-6)  # a tree
    assert IDEAL.collective_time(one_hop(1e7), mesh, ("x",)) == pytest.approx(1e-3 + 1e-6)
    assert IDEAL.collective_time((), mesh, ("x",)) == 0


def test_a_product_takes_its_flops_or_its_bytes():
    assert IDEAL.product_time(1, 1000, 1000, 500, 0, BF16) == pytest.approx(1e-3)
    assert IDEAL.product_time(2, 1000, 1000, 250, 0, F32) == pytest.approx(2e-3)
    assert IDEAL.product_time(1, 10, 10, 10, 1e8, F32) == pytest.approx(1e-3)  # bound by memory
    assert IDEAL.product_time(1, 10, 10, 0, 1e8, F32) == pytest.approx(1e-3)  # nothing is multiplied
    slower = replace(IDEAL, product_fraction=0.5, memory_fraction=0.5, kernel_gap=1e-5)
    assert slower.product_time(1, 1000, 1000, 500, 0, BF16) == pytest.approx(2e-3 + 1e-5)
    assert slower.memory_time(1e8) == pytest.approx(2e-3 + 1e-5)
    assert slower.attention_time(1e9, 0, 1e8, BF16) == pytest.approx(2e-3 + 1e-5)
    assert replace(slower, attention_fraction=0.1).attention_time(1e9, 0, 0, BF16) == pytest.approx(1e-2 + 1e-5)


def test_a_product_runs_in_waves_of_tiles():
    gpu = replace(IDEAL, cores=100)
    tile = 2 * 128 * 128 * (100 + 200) / (1e12 / 100)  # k is too short to be split

    def tiles(batch, m, n):
        return gpu.product_time(batch, m, n, 100, 0, BF16) / tile

    assert tiles(100, 1, 1) == tiles(100, 128, 128) == pytest.approx(1)
    assert tiles(101, 128, 128) == pytest.approx(2)  # one tile more is one wave more
    assert tiles(100, 256, 128) == tiles(100, 128, 256) == pytest.approx(2)


def test_a_product_with_few_tiles_is_split_along_k():
    gpu = replace(IDEAL, cores=100, memory_bandwidth=1e15)
    k = 1 << 20
    one = 2 * 128 * 128 * (k + 200) / (1e12 / 100)
    assert gpu.product_time(1, 128, 128, k, 0, BF16) == pytest.approx(one / 32, rel=0.02)
    assert gpu.product_time(50, 128, 128, k, 0, BF16) == pytest.approx(one / 2, rel=0.02)
    assert gpu.product_time(100, 128, 128, k, 0, BF16) == pytest.approx(one, rel=0.02)


def test_attention_is_faster_with_more_keys():
    h100 = chip("h100")
    short, long = (h100.attention_time(1e12, keys, 0, BF16) for keys in (500, 50_000))
    assert short / long == pytest.approx(2 / 1.01, rel=1e-3)


def test_a_larger_product_never_takes_less_time():
    a100 = chip("a100")
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch, m, n, k = (int(2**power) for power in rng.uniform(0, 13, 4))
        base = a100.product_time(batch, m, n, k, 0, BF16)
        for more in ((batch + 1, m, n, k), (batch, m + 1, n, k), (batch, m, n + 1, k), (batch, m, n, k + 1)):
            assert a100.product_time(*more, 0, BF16) >= base
