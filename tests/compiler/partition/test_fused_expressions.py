"""Expressions of rewritten programs against those that are analyzed from the start."""

import random
from itertools import count

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.partition.kernels import group_kernels
from shardwise.compiler.schedule.control_dependencies import ControlDependency, order_by_dependencies
from shardwise.compiler.shardings.mesh import AbstractMesh

MESH = AbstractMesh((2,), ("data",))


def attention(x, weight):
    normed = x * sw.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    scores = sw.nn.softmax(jnp.where(jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)), normed @ normed.T, -1e30))
    return x + sw.nn.gelu(scores @ normed @ weight) + weight.reshape(-1)[: x.shape[1]]


def training_step(weights, mean, x):
    def loss(weights):
        y = x
        for weight in weights:
            y = sw.checkpoint(attention)(y, weight)
        return (y * y).sum(), y.T

    (value, other), grads = sw.value_and_grad(loss, has_aux=True)(weights)
    mean = [0.9 * a + 0.1 * b for a, b in zip(mean, grads, strict=True)]
    return [w - 0.1 * m / (jnp.sqrt(m * m) + 1e-8) for w, m in zip(weights, mean, strict=True)], mean, value, other


def training_program():
    weights = [sw.ShapeDtypeStruct((64, 64), np.float32)] * 3
    lowered = sw.jit(training_step).lower(weights, weights, sw.ShapeDtypeStruct((32, 64), np.float32))
    return lowered._prepared.stages.local.program


def rewritten(program, seed):
    """Return a program with random barriers, copies of equations, and another order."""
    choices = random.Random(seed)
    equations = list(program.equations)
    for index in choices.sample(range(len(equations)), choices.randrange(4)):
        equations[index] = equations[index].replace()
    program = program.with_equations(equations)
    with_inputs = [equation for equation in equations if equation.inputs]
    pairs = [sorted(choices.sample(range(len(with_inputs)), 2)) for _ in range(choices.randrange(6))]
    firsts, lasts = {}, {}
    for first, last in pairs:
        if with_inputs[first] not in firsts and with_inputs[last] not in lasts:
            firsts[with_inputs[first]], lasts[with_inputs[last]] = last, first
    dependencies = [ControlDependency((with_inputs[last],), (first,)) for first, last in firsts.items()]
    if choices.randrange(2):  # later equations first, where nothing prevents it
        dependencies = [ControlDependency(d.predecessors, d.successors) for d in dependencies]
    return order_by_dependencies(program, dependencies, count())


def content(groups):
    kernels = [(k.root, k.equations, list(k.reads.items()), list(k.writes.items())) for k in groups.kernels]
    return kernels, dict(groups.storage), groups.unstored


@pytest.mark.parametrize("platform", ["", "gpu", "cpu"])
def test_kernels_of_a_rewritten_program_are_those_of_the_program(platform):
    program = training_program()
    groups, changed = group_kernels(program, MESH, platform), 0
    for seed in range(12):
        other = rewritten(program, seed)
        changed += other.equations != program.equations
        again = groups.rewritten(other)
        assert content(again) == content(group_kernels(other, MESH, platform))
        assert content(again.rewritten(program)) == content(groups)  # and back
    assert changed > 5


def test_an_output_that_was_computed_inside_a_kernel_is_stored():
    program = training_program()
    groups = group_kernels(program, MESH)
    inside = next(value for value in groups.expressions.fused if value.type.size > 1)
    other = program.with_equations(program.equations, (*program.outputs, inside))
    assert content(groups.rewritten(other)) == content(group_kernels(other, MESH))
    assert inside in {value for kernel in groups.rewritten(other).kernels for value in kernel.writes}


def test_a_program_without_common_equations_is_analyzed_from_the_start():
    program, other = training_program(), training_program()
    assert content(group_kernels(program, MESH).rewritten(other)) == content(group_kernels(other, MESH))
