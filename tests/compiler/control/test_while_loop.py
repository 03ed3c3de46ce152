"""Predicates of a loop on several devices."""

import numpy as np
import pytest

from shardwise.compiler.control.while_loop import While
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.shape.constants import full
from shardwise.errors import ProgramError
from tests.compiler.control.control_programs import program

COUNT = While(
    program("below", "i32[]", lambda n: [Compare("LT")(n, full((), 3, np.int32))]),
    program("next", "i32[]", lambda n: [Add()(n, full((), 1, np.int32))]),
    0,
    0,
)


def test_predicates_of_devices_must_agree():
    assert COUNT.choice_per_device([np.int32(3), np.int32(3)]) == [3, 3]
    with pytest.raises(
        ProgramError, match=r"while: devices must take the same branch, but their predicates are \[3, 4\]"
    ):
        COUNT.choice_per_device([np.int32(3), np.int32(4)])
    assert COUNT.allowing_divergence().choice_per_device([np.int32(3), np.int32(4)]) == [3, 4]  # in a manual region
