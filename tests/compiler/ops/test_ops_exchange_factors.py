"""Ops that communicate between the shards of a dim compute the same on devices as in numpy, also for small arrays.

The law `factors_like_shards` runs the shards in numpy. The planner would gather arrays this small, so the tests
restrict the candidates to sharded ones.
"""

from dataclasses import replace

import pytest

from shardwise.base._jaxlib import compile_text, launcher, put, result_handler
from shardwise.compiler.candidates.candidate import factor_candidate
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.lower.lower import lower
from shardwise.compiler.partition.evaluate_shards import assemble_shards, split_into_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.runtime.client import devices
from tests.compiler.ops.cases import op_cases
from tests.compiler.ops.laws import assert_alike, has_rule, pin_along
from tests.device_shards import shards_to_numpy

OPS = {
    *("cumulative", "recurrence", "sort", "top_k", "argmax", "argmin"),
    *("reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor"),
}
DTYPES = {"f32", "bf16", "i32", "bool", "c64", "f8_e4m3fn", "u8"}
MESH = AbstractMesh((4, 2), ("a", "b"))


def exchange_cases():
    """Yield cases of these ops with an exchange factor: sharded into 8, or into 4 with another dim sharded into 2."""
    for case in op_cases():
        if case.op.name not in OPS or not has_rule(case) or case.types[0].size == 0:
            continue
        rule = factor_rule(case.op, case.types)
        for factor in sorted(rule.exchange):
            others = sorted(rule.leading - {factor})
            if str(case.types[0]).split("[")[0] in DTYPES:
                yield case, {"a": factor, "b": others[0] if others and not case.special else factor}


@pytest.mark.table(default=150)
@pytest.mark.parametrize(
    ("case", "factors"), [pytest.param(*each, id=f"{each[0]} {each[1]}") for each in exchange_cases()]
)
def test_devices_compute_the_reference(case, factors):
    program, args = case.program, case.args
    rule = factor_rule(case.op, case.types)
    (equation,) = program.equations
    reduced = any(factor in rule.reduce for factor in factors.values())
    pins = [pin_along(factors, dims) for dims in rule.operands]
    outs = [None if reduced else pin_along(factors, dims) for dims in rule.results]
    problem = layout_problem(program, MESH, pins, outs)
    options = {axis: {equation: (factor_candidate(rule, factor),)} for axis, factor in factors.items()}
    problem = replace(problem, candidates=options)
    local = partition(problem, choose(problem))
    text = lower(local).text
    all_devices = devices()[: MESH.size]
    shapes = [(placement.shard_shape(MESH), placement.type.dtype) for placement in local.outputs]
    handlers = [result_handler(shape, dtype, all_devices) for shape, dtype in shapes]
    launch = launcher(compile_text(text, all_devices), handlers)
    shards = [split_into_shards(placement, arg, MESH) for placement, arg in zip(local.inputs, args, strict=True)]
    results = launch([put(each, all_devices, all_devices) for each in shards])
    actual = [
        assemble_shards(placement, shards_to_numpy(buffers), MESH)
        for placement, buffers in zip(local.outputs, results, strict=True)
    ]
    assert_alike(case.op, actual, evaluate(program, args))
