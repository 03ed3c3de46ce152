"""The thresholds of XLA's combiners, for programs that are written by hand and for the pipeline."""

import re
from dataclasses import replace

import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.lower.lower import lower
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.schedule.combine_thresholds import combine_thresholds
from shardwise.execute import request
from tests.compiler.schedule.local_programs import GATHER, H200, REDUCE, SCATTER, local_of

SCATTERS, GATHERS, REDUCES = (
    f"xla_gpu_{kind}_combine_threshold_bytes" for kind in ("reduce_scatter", "all_gather", "all_reduce")
)
OVERLAPPING = replace(H200, device_kinds=CPU.device_kinds, platform="cpu")


def scatters(*launches):
    """Return the text of reduce-scatters of f32[64], each with a launch."""
    inputs = ", ".join(f"x{n}: f32[64]" for n in range(len(launches)))
    ops = (SCATTER if launch is None else SCATTER.replace("]", f", launch={launch}]") for launch in launches)
    lines = "\n".join(f"y{n}: f32[16] = {op} x{n}" for n, op in enumerate(ops))
    return f"({inputs}) {{\n{lines}\nreturn {', '.join(f'y{n}' for n in range(len(launches)))}\n}}"


@pytest.mark.parametrize(
    ("launches", "threshold"), [([None, None], 64), ([0, 0, None], 128), ([0, 0, 1, 1, 1], 192), ([None], 64)]
)
def test_the_threshold_of_reduce_scatters_is_their_largest_launch(launches, threshold):
    assert combine_thresholds(local_of(scatters(*launches))) == {SCATTERS: threshold}


def test_xla_merges_no_collectives_whose_launches_are_one_op():
    text = f"(a: f32[64]) {{\nb: f32[256] = {GATHER} a\nc: f32[64] = {REDUCE} a\nreturn b, c\n}}"
    assert combine_thresholds(local_of(text)) == {GATHERS: 0, REDUCES: 0}
    assert combine_thresholds(local_of("(a: f32[4]) {\nb: f32[4] = neg a\nreturn b\n}")) == {}


PAIR = """
a: f32[64] = all_reduce[axes=('data',), reduction=sum, launch=0] {}
b: f32[64] = all_reduce[axes=('data',), reduction=sum, launch=0] {}
"""
LOOP = (
    f"(x: f32[64], y: f32[64]) {{{PAIR.format('x', 'y')}"
    "c: f32[64], d: f32[64] = scan[program=program body(a: f32[64], b: f32[64]) "
    f"{{{PAIR.format('a', 'b').replace('a:', 'c:').replace('b:', 'd:')}return c, d}}, "
    "length=3, consts=0, carried=2] a b\nreturn c, d\n}"
)


def test_xlas_gpu_compiler_merges_all_reduces_of_loops():
    local = local_of(LOOP)
    assert combine_thresholds(local) == {REDUCES: 512}
    for platform, operands in (("cuda", [2, 1, 1]), ("rocm", [2, 1, 1]), ("cpu", [2, 2])):
        reduced = re.findall(r'"stablehlo.all_reduce"\((.*?)\)', lower(local, platform=platform).text)
        assert sorted(names.count(",") + 1 for names in reduced) == sorted(operands)


def lowered(mesh, platform):
    def put(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    arguments = put((64, 32), P("data")), put((32, 48), P("data"))
    step = jax.jit(jax.grad(lambda w, x: (x @ w).sum()), out_shardings=arguments[1].sharding)
    return step.trace(arguments[1], arguments[0]).lower(lowering_platforms=(platform,))


def options(mesh, platform):
    chosen = dict(lowered(mesh, platform)._prepared.stages.module.options)
    return {name: value for name, value in chosen.items() if "combine_threshold" in name}


def test_only_scheduled_programs_for_gpus_have_thresholds(mesh, monkeypatch):
    assert options(mesh, "cuda") == {}  # planned for hardware that overlaps nothing
    monkeypatch.setattr(request, "chip_of", lambda kind: OVERLAPPING)
    assert options(mesh, "cpu") == options(mesh, "tpu") == {}
    for platform in ("cuda", "rocm"):
        chosen = options(mesh, platform)
        assert chosen and set(chosen) <= {SCATTERS, GATHERS, REDUCES}
    with jax.config.override("schedule_communication", False):
        assert options(mesh, "cuda") == {}
