"""Triangular solves with sharded right-hand sides."""

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from tests.compiler.ops.linalg.test_linalg import FROM_LEFT, MESH


def test_right_hand_sides_stay_sharded():
    types = [ArrayType((4, 4), np.float32), ArrayType((4, 24), np.float32)]
    program = rewrite("program", types, lambda a, b: [FROM_LEFT(a, b)])
    local = run_stages(program, MESH, [pin_of(P(), (4, 4), MESH), pin_of(P(None, "x"), (4, 24), MESH)], [None]).local
    assert local.collectives() == []
    assert local.outputs[0].layout.dims == ((), ("x",))
