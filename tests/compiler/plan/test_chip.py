"""Times of products, kernels and collectives against the formulas, and the links of rings."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.plan.chip import Chip, Link
from shardwise.compiler.plan.hardware import built_in_chips, chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Algorithm, all_gather, all_reduce, one_hop

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
IDEAL = Chip("ideal", (), 1e12, 5e11, 10**9, 1e11, Link(1e10, 1e-6), Link(1e9, 1e-5), 8)


def test_a_hop_within_a_node_has_the_latency_of_fast_links():
    mesh = AbstractMesh((4, 8), ("node", "gpu"))
    h100 = chip("h100")
    fast, slow = h100.fast_link.latency, h100.slow_link.latency
    assert h100.ring(mesh, ("gpu",)).latency == fast
    assert h100.ring(mesh, ("node",)).latency == slow
    assert h100.ring(AbstractMesh((2, 4), ("a", "b")), ("a",)).latency == fast
    assert h100.ring(AbstractMesh((1, 8), ("a", "b")), ("a",)).latency == fast
    assert chip("v5p").ring(mesh, ("node",)).latency == chip("v5p").fast_link.latency
    assert h100.ring(AbstractMesh((1, 8), ("a", "b")), ("a",)).aggregated_latency is None


@pytest.mark.parametrize(("nodes", "gpus"), [(4, 8), (2, 3), (5, 1), (64, 8), (1, 8)])
def test_the_latency_of_a_ring_is_that_of_the_path_of_one_block(nodes, gpus):
    """A block travels from device to device, node by node; the links that it crosses are counted one by one."""
    ideal = replace(IDEAL, fast_domain_size=gpus)
    latencies = [
        ideal.slow_link.latency if (d + 1) % gpus == 0 else ideal.fast_link.latency for d in range(nodes * gpus)
    ]
    ring = ideal.ring(AbstractMesh((nodes, gpus), ("node", "gpu")), ("node", "gpu"))
    hops = Algorithm(0.0, hops=nodes * gpus - 1)
    assert ring.waiting(hops) == pytest.approx(sum(latencies[:-1]))
    assert ideal.ring_of(range(nodes * gpus)) == ring


def test_a_tree_has_its_upper_levels_between_nodes():
    ring = IDEAL.ring(AbstractMesh((64, 8), ("node", "gpu")), ("node", "gpu"))
    assert ring.waiting(Algorithm(0.0, tree_levels=9)) == pytest.approx(3 * 1e-6 + 6 * 1e-5)
    small, large = all_reduce(1e3, 512), all_reduce(1e10, 512)
    assert ring.time(small) == small[1].bytes_sent / ring.bandwidth + ring.waiting(small[1])
    assert ring.time(large) == large[0].bytes_sent / ring.bandwidth + ring.waiting(large[0])


def test_aggregated_trees_need_one_device_per_node():
    mesh, gathered = AbstractMesh((64, 8), ("node", "gpu")), all_gather(1e3, 64)
    assert IDEAL.ring(mesh, ("node",)).time(gathered) == 63e3 / 1e9 + 6 * 1e-5  # log₂ 64 levels
    assert IDEAL.ring(mesh, ("node", "gpu")).waiting(gathered[1]) == float("inf")


def test_devices_may_share_slow_links_and_the_network_may_be_oversubscribed():
    mesh = AbstractMesh((4, 8), ("node", "gpu"))
    for sharing in (replace(IDEAL, slow_links=0.5), replace(IDEAL, oversubscription=2.0)):
        assert sharing.ring(mesh, ("node",)).bandwidth == 5e8
        assert sharing.ring(mesh, ("node", "gpu")).bandwidth == 4e9
        assert sharing.ring(mesh, ("gpu",)).bandwidth == 1e10


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
    assert IDEAL.collective_time(all_reduce(1e2 * 4 / 7, 8), mesh, ("x",)) == pytest.approx(
        8e2 / 7 / 1e10 + 6e-6
    )  # a tree
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


def test_the_slowest_and_fastest_chips_differ_in_assumed_figures_only():
    box = replace(IDEAL, product_fraction=0.5, memory_fraction=0.9, kernel_gap=1e-6)
    assert box.slowest == box.fastest == box
    sources = (("product_fraction", "measured"), ("memory_fraction", "assumed: like b"), ("kernel_gap", "assumed"))
    box = replace(box, sources=sources)
    assert box.assumed == ("memory_fraction", "kernel_gap")
    assert box.fastest.memory_fraction == 1.0 and box.slowest.memory_fraction == pytest.approx(0.72)
    assert box.slowest.kernel_gap == pytest.approx(1.25e-6)
    assert box.slowest.product_fraction == box.fastest.product_fraction == 0.5


def test_a_ring_may_lie_along_the_axes_of_a_torus_that_no_other_axis_takes():
    box = replace(IDEAL, torus_dims=3, fast_domain_size=64, sources=(("torus_axes", "assumed"),))
    assert box.slowest.torus_axes == box.torus_axes == 1 and box.fastest.torus_axes == 3

    def gain(mesh, axes):
        return box.fastest.ring(mesh, axes).bandwidth / box.ring(mesh, axes).bandwidth

    mesh = AbstractMesh((2, 4, 16), ("slice", "data", "model"))  # two slices of 64 devices
    assert gain(AbstractMesh((64,), ("data",)), ["data"]) == gain(mesh, ["data", "model"]) == 3
    assert gain(mesh, ["model"]) == gain(mesh, ["data"]) == 2
    assert gain(mesh, ["slice"]) == 1
    assert gain(AbstractMesh((4, 4, 4), ("a", "b", "c")), ["b"]) == 1


def test_copies_from_and_to_the_host_take_the_time_of_the_host_link():
    assert replace(IDEAL, host_link=5e10).host_time(1e9) == 0.02
    assert IDEAL.host_time(1e9) == 0  # one memory
    assert all(chip.host_link for chip in built_in_chips().values() if chip.platform != "cpu")
