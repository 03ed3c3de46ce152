"""The search against brute force."""

from itertools import product

import shardwise as sw
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.evaluate import Evaluator
from shardwise.layout_search.search import STORAGE_COSTS, LayoutSearch
from shardwise.layout_search.step import trace_step
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
