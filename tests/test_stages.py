"""The classes of `shardwise.stages` are those of the stages of ahead-of-time compilation."""

import numpy as np

import shardwise as sw
from shardwise import stages


def test_every_stage_is_an_instance_of_its_class():
    double = sw.jit(lambda x: x * 2)
    traced = double.trace(np.ones(3, np.float32))
    lowered = traced.lower()
    found = [double, traced, lowered, lowered.compile(), *sw.tree.leaves(lowered.args_info)]
    assert [type(stage) for stage in found] == [
        stages.Wrapped,
        stages.Traced,
        stages.Lowered,
        stages.Compiled,
        stages.ArgInfo,
    ]
