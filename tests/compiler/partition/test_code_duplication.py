"""Which equations a fused kernel on CPU computes, for pairs of slices of pairs of slices."""

import numpy as np

import shardwise as sw
from shardwise.compiler.partition.code_duplication import emitted_members


def members_of(function):
    program = sw.jit(function).lower(sw.ShapeDtypeStruct((1024,), np.float32))._prepared.stages.local.program
    return list(program.equations)


def products_of_pairs(x, levels):
    for _ in range(levels):
        x = x[::2] * x[1::2]
    return x


def test_code_that_is_emitted_eight_times_is_in_the_kernel():
    members = members_of(lambda x: products_of_pairs(-x, 3))
    assert emitted_members(members) == members


def test_code_that_would_be_emitted_sixteen_times_is_not():
    members = members_of(lambda x: products_of_pairs(abs(-x), 4))
    assert emitted_members(members) == [e for e in members if e.op.name not in ("abs", "neg")]


def test_reading_a_value_again_with_the_same_index_adds_no_code():
    members = members_of(lambda x: products_of_pairs(-x * -x + x, 3))
    assert emitted_members(members) == members
