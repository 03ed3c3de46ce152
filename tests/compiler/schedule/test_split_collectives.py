"""Which collectives are split: where the simulator predicts that it is faster, in loops and outside."""

from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

import shardwise as jax
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.partition.local_program import verify_local
from shardwise.compiler.report.streams import simulated_seconds
from shardwise.compiler.schedule import schedule as schedule_module
from shardwise.compiler.schedule import split_collectives as module
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.schedule.schedule import schedule
from shardwise.compiler.schedule.split_collectives import split_collectives
from tests.compiler.schedule.local_programs import DOT, H200, REDUCE, local_of
from tests.compiler.schedule.test_schedule import OVERLAPPING, arguments, overlapping, stages_of  # noqa: F401


def layers(number, rows, size, hidden):
    """Return the lines of tensor-parallel layers from x0."""
    return "\n".join(
        f"h{n}: bf16[{rows},{hidden}] = {DOT} x{n} up\n"
        f"y{n}: bf16[{rows},{size}] = {DOT} h{n} down\n"
        f"r{n}: bf16[{rows},{size}] = {REDUCE} y{n}\n"
        f"x{n + 1}: bf16[{rows},{size}] = add r{n} x{n}"
        for n in range(number)
    )


def unrolled(rows, size, hidden, number=3):
    inputs = f"x0: bf16[{rows},{size}], up: bf16[{size},{hidden}], down: bf16[{hidden},{size}]"
    return f"({inputs}) {{\n{layers(number, rows, size, hidden)}\nreturn x{number}\n}}"


def scanned(rows, size, hidden):
    x, up, down = f"bf16[{rows},{size}]", f"bf16[{size},{hidden}]", f"bf16[{hidden},{size}]"
    body = f"program body(up: {up}, down: {down}, x0: {x}) {{\n{layers(2, rows, size, hidden)}\nreturn x2\n}}"
    scan = f"scan[program={body}, length=4, consts=2, carried=1]"
    return f"(x: {x}, up: {up}, down: {down}) {{\nz: {x} = {scan} up down x\nreturn z\n}}"


def split(local):
    graph = KernelGraph.from_program(local, local.program, replace(H200, interference=0.0))  # as `schedule` does
    return verify_local(replace(local, program=split_collectives(graph, count())))


def test_long_collectives_between_products_are_split():
    local = local_of(unrolled(16384, 4096, 4096))
    parts = split(local)
    assert len(parts.collectives()) == 2 * len(local.collectives())
    assert parts.sent == local.sent
    assert simulated_seconds(parts, H200) < 0.98 * simulated_seconds(local, H200)
    without_interference = replace(H200, interference=0.0)
    assert simulated_seconds(parts, without_interference) < 0.8 * simulated_seconds(local, without_interference)


@pytest.mark.parametrize("shape", [(256, 4096, 4096), (16383, 4095, 4096)])
def test_other_collectives_are_not_split(shape):
    """Parts of short ones take longer because of their latency, and odd sizes have no equal parts."""
    local = local_of(unrolled(*shape))
    assert split(local).program is local.program


def test_around_a_reduced_gradient_no_region_is_grown(monkeypatch):
    """No product depends on it, so that splitting it saves no time."""
    monkeypatch.setattr(module.RegionFinder, "region", None)
    x = "bf16[16384,16384]"
    local = local_of(f"(x: {x}, g: {x}) {{\ny: {x} = {DOT} x g\nr: {x} = {REDUCE} y\nreturn r\n}}")
    assert split(local).program is local.program


def test_no_parts_are_emitted_whose_launches_take_longer_than_the_exposed_time(monkeypatch):
    monkeypatch.setattr(module, "emit_parts", None)
    local = local_of(unrolled(16384, 4096, 4096))
    graph = KernelGraph.from_program(local, local.program, replace(H200, interference=0.0, kernel_gap=5e-4))
    assert split_collectives(graph, count()) is local.program


def test_a_loop_is_split_and_computes_the_same():
    large = schedule(local_of(scanned(16384, 4096, 4096)), H200)
    (loop,) = [equation for equation in large.program.equations if equation.op.programs]
    names = [equation.op.name for equation in loop.op.programs[0].equations]
    assert names.count("all_reduce") == 4 and "concatenate" in names
    assert large.sent == local_of(scanned(16384, 4096, 4096)).sent


def blocks(number, size=8192):
    """Return layers between which rows are summed, so that each layer is a region."""
    x = f"bf16[{size},{size}]"
    lines = "\n".join(
        f"y{n}: {x} = {DOT} x{n} w\n"
        f"r{n}: {x} = {REDUCE} y{n}\n"
        f"z{n}: {x} = {DOT} r{n} w\n"
        f"x{n + 1}: {x} = dot[contract=((0,), (0,)), batch=((), ())] z{n} w"
        for n in range(number)
    )
    return f"(x0: {x}, w: {x}) {{\n{lines}\nreturn x{number}\n}}"


def test_equal_layers_are_analyzed_once(monkeypatch):
    """The number of simulations, and of regions that are grown, does not depend on the number of layers."""
    counts = Counter()
    for cls, name in ((module._Splitter, "_simulate"), (module.RegionFinder, "region")):
        original = getattr(cls, name)

        def counted(self, *args, original=original, name=name):
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(cls, name, counted)
    found = []
    for number in (4, 12):
        counts.clear()
        local = local_of(blocks(number))
        assert len(split(local).collectives()) == 2 * len(local.collectives())
        found.append(dict(counts))
    assert found[0] == found[1]


def test_of_a_long_region_the_first_collectives_are_simulated(monkeypatch):
    sizes = []
    original = module._Splitter._simulate
    monkeypatch.setattr(
        module._Splitter,
        "_simulate",
        lambda self, window: sizes.append(len(window.equations)) or original(self, window),
    )
    sizes_of = {}
    for number in (8, 16):
        sizes.clear()
        local = local_of(unrolled(16384, 4096, 4096, number))
        assert len(split(local).collectives()) == 2 * number
        sizes_of[number] = list(sizes)
    assert sizes_of[8] == sizes_of[16]


# Small arrays take as long on it as large ones on a GPU.
SLOW = replace(
    H200,
    bf16_flops=1e6,
    cores=1,
    memory_bandwidth=1e12,
    kernel_gap=0.0,
    fast_link=replace(H200.fast_link, bandwidth=2e4, latency=1e-9),
    slow_link=replace(H200.slow_link, latency=1e-9),
)


@pytest.mark.parametrize("text", [unrolled(64, 16, 64), scanned(64, 16, 64)])
def test_a_program_in_parts_computes_the_same(text):
    local = local_of(text)
    scheduled = schedule(local, SLOW)
    assert len(scheduled.collectives()) > len(local.collectives())
    rng = np.random.default_rng(0)
    args = [(rng.integers(-2, 3, type.shape) / 8).astype(type.dtype) for type in local.program.in_types]
    for got, wanted in zip(evaluate_shards(scheduled, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=1e-2)


def test_parts_take_no_more_memory_where_nothing_is_joined():
    local = local_of(unrolled(16384, 4096, 4096))
    held = peak(local, (), H200)[0]
    scheduled = schedule(local, H200, memory_limit=held)
    assert len(scheduled.collectives()) == 2 * len(local.collectives())
    assert peak(scheduled, (), H200)[0] <= held
    assert schedule(local, H200, memory_limit=1) is local


@pytest.mark.parametrize(("how", "scanned"), [("tensor parallel", False), ("FSDP × tensor", True)])
def test_training_steps_in_parts_compute_the_same(mesh, overlapping, monkeypatch, how, scanned):  # noqa: F811
    """Every region is split, whether or not it pays: recomputed layers, pipelined loops, and weights along columns."""
    monkeypatch.setattr(module, "_MAX_SLOWDOWN", 1e9)
    monkeypatch.setattr(module, "_between_products", lambda program, collectives: list(collectives))
    monkeypatch.setattr(module._Splitter, "_can_pay", lambda self, region: bool(region.dims))
    monkeypatch.setattr(module._Splitter, "_fastest", lambda self, window, regions: regions[0].parts)
    monkeypatch.setattr(schedule_module, "_is_slower", lambda *programs: False)
    local = stages_of(mesh, how, scanned, True).partitioned
    scheduled = schedule(local, OVERLAPPING)
    assert len(scheduled.collectives()) > len(local.collectives())
    assert scheduled.sent == pytest.approx(local.sent)
    args = jax.tree.leaves(arguments())
    for got, wanted in zip(evaluate_shards(scheduled, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
