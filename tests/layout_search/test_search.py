"""The search against brute force."""

from itertools import product

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.evaluate import Evaluator
from shardwise.layout_search.meshes import mesh_shapes
from shardwise.layout_search.search import STORAGE_COSTS, LayoutSearch
from shardwise.layout_search.step import trace_step
from shardwise.layout_search.variants import meshes_to_try
from shardwise.models import Decoder, Experts, train_state, train_step
from tests.layout_search.test_autoshard import sgd, small


def test_tensor_parallel_layouts_are_the_best_of_all():
    """The planner chooses the dims of both weights that brute force finds to send least."""
    step = trace_step(sw.jit(sgd), small(4096))
    mesh = AbstractMesh((8,), ("model",))
    evaluator = Evaluator(step, chip("h100"), None, ())
    search = LayoutSearch(evaluator, [mesh])
    chosen = search.choose_layouts(mesh, search.base, ("model",), STORAGE_COSTS[-1], search.state_inputs())
    dims = [((), ()), (("model",), ()), ((), ("model",))]
    sent = {
        (down, up): evaluator.evaluate("", mesh, (Layout(down), Layout(up), *search.base[2:])).wire_bytes
        for down, up in product(dims[1:], repeat=2)
    }
    best = min(sent, key=sent.get)
    assert tuple(layout.dims for layout in chosen[:2]) == best == (dims[1], dims[2])


def test_refined_alternatives_have_the_layouts_of_their_strategy_but_for_the_changes():
    alternatives = sw.autoshard(sgd, hardware="h100", count=16)(*small(4096)).alternatives
    strategies = {(plan.name, plan.mesh, plan.layouts) for plan in alternatives if not plan.changes}
    refined = [plan for plan in alternatives if plan.changes]
    assert refined
    for plan in refined:
        layouts = list(plan.layouts)
        for change in plan.changes:
            assert change.before != change.after
            for index in change.indices:
                assert layouts[index] == change.after
                layouts[index] = change.before
        assert (plan.name, plan.mesh, tuple(layouts)) in strategies and plan.strategy == f"refined {plan.name}"


def moe_search(count, memory_limit=None):
    """Return a search for a mixture of experts whose weights take longer to gather than its tokens to exchange."""
    sizes = Decoder(2, 256, 4, 4, 64, 256, 512, experts=Experts(8, 2, 4096))
    step = trace_step(sw.jit(train_step(sizes)), (train_state(sizes), sw.ShapeDtypeStruct((count, 65), jnp.int32)))
    h100 = chip("h100")
    return LayoutSearch(Evaluator(step, h100, memory_limit, ()), mesh_shapes(count, h100))


@pytest.mark.slow
def test_experts_are_sharded_in_each_of_several_replicas_where_that_is_faster():
    search = moe_search(64)
    search._try_experts()
    experts = [plan for plan in search.ranked() if plan.name == "FSDP × expert parallel"]
    replicas = [plan for plan in experts if len(plan.mesh.axis_names) == 3]
    assert replicas and experts[0] in replicas
    for plan in replicas:
        for role, layout in zip(search.step.roles, plan.layouts, strict=True):
            assert ("replica" in layout.axes) == (role == "batch")


def test_a_variant_that_needs_less_memory_is_tried_with_replicas():
    """Plans with replicas hold more, so they are not tried for a variant of which no plan fits."""
    meshes = mesh_shapes(32, chip("h100"))
    known = [mesh for mesh in meshes if len(mesh.axis_names) == 1]
    for fits in (False, True):
        assert meshes_to_try(known, meshes, fits) == [
            mesh for mesh in meshes if mesh in known or (not fits and len(mesh.axis_names) == 3)
        ]
