"""vmap of programs: no batched inputs, and empty batches."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.transforms.vmap import vmap_program
from tests.compiler.transforms.programs import SQUARE
from tests.compiler.transforms.test_transforms import PROGRAMS


def test_a_program_without_batched_inputs_is_unchanged_by_vmap():
    batched, dims = vmap_program(SQUARE, BatchAxis(3), (None,))
    assert batched == SQUARE
    assert dims == (None,)


def test_a_batch_may_be_empty():
    batched, dims = vmap_program(PROGRAMS[1], BatchAxis(0), (0, None, None))
    (found,) = evaluate(verify(batched), [np.zeros((0, 3, 4)), np.zeros((4, 5)), np.zeros((5, 2))])
    assert found.shape == (0,)
    assert dims == (0,)
