"""The StableHLO text."""

import re

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build


def text_of(layers, mesh):
    def function(x, *weights):
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            x = (x @ up) @ down
        return [x]

    types = [ArrayType((512, 512), np.float32)] * (1 + 2 * layers)
    specs = [P(), *[P(None, "model"), P("model", None)] * layers]
    program, _ = build(function, types, "deep")
    pins = [pin_of(spec, (512, 512), mesh) for spec in specs]
    return run_stages(program, mesh, pins, [None]).module.text


def test_collectives_over_the_same_devices_share_one_table():
    text = text_of(20, AbstractMesh((64, 64), ("data", "model")))
    assert text.count("stablehlo.all_reduce") == 20
    tables = re.findall(r"^#devices\d+ = dense<\[\[0, 1, 2", text, re.MULTILINE)
    assert len(tables) == text.count("dense<[[") == 1


def test_batch_dims_of_a_dot_come_first():
    def function(x, y):
        return [Dot(((3,), (3,)), ((0, 2), (0, 2)))(x, y)]

    program, _ = build(function, [ArrayType((2, 5, 3, 4), np.float32)] * 2, "scores")
    pin = pin_of(P(), (2, 5, 3, 4), AbstractMesh((), ()))
    text = run_stages(program, AbstractMesh((), ()), [pin, pin], [None]).module.text
    assert "lhs_batching_dimensions = [0, 1], rhs_batching_dimensions = [0, 1]" in text
    assert text.count("permutation = array<i64: 0, 2, 1, 3>") == 2
