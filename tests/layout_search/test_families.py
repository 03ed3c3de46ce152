"""Layouts of families: padding of dims that axes do not divide, and expert parallelism."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.families import may_be_divided, pinned_layouts, with_experts
from shardwise.layout_search.step import trace_step
from shardwise.models import Decoder, Experts, train_state, train_step


def test_padding_is_small():
    assert may_be_divided(16, 8) and may_be_divided(15, 8) and may_be_divided(97, 8)
    assert not may_be_divided(13, 8) and not may_be_divided(3, 8) and not may_be_divided(0, 8)


@pytest.mark.parametrize("experts", [None, Experts(4, 2, 48)])
def test_experts_are_sharded_by_expert_and_nothing_else_is(experts):
    sizes = Decoder(2, 32, 4, 2, 8, 48, 64, experts=experts)
    args = train_state(sizes), sw.ShapeDtypeStruct((8, 17), jnp.int32)
    step = trace_step(sw.jit(train_step(sizes)), args)
    for count in (2, 8):
        mesh = AbstractMesh((4, count), ("data", "model"))
        layouts = with_experts(step, mesh, pinned_layouts(step), "model")
        assert (layouts is None) == (experts is None or count > 4)
        if layouts is not None:
            for name, layout in zip(step.request.names, layouts, strict=True):
                assert layout.dim_of("model") == (1 if "expert_" in name else None), name
