"""Compile functions of indexed arrays on a mesh; list their collectives."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build

MESH = AbstractMesh((4, 2), ("data", "model"))


def compile_on_mesh(function, *args):
    """Return the program of a function of arrays, given as (shape, dtype, spec), and its compiled stages."""
    types = [ArrayType(shape, dtype) for shape, dtype, _ in args]
    program, captured = build(lambda *xs: [function(*xs)], types, "program")
    assert not captured
    pins = [pin_of(spec, shape, MESH) for shape, _, spec in args]
    return program, run_stages(program, MESH, pins, [None])


def collectives(stages):
    """Return the name and the result shape of each collective."""
    return [(step.op.name, step.outputs[0].type.shape) for step in stages.local.collectives()]


def assert_like_one_device(program, stages, *args):
    for got, want in zip(evaluate_shards(stages.local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


F32, I32 = np.float32, np.int32
