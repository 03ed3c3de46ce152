"""Roles of the arguments and results of a step."""

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks.models import MODELS, training_step
from shardwise.layout_search.step import trace_step
from tests.layout_search.test_autoshard import structs


def test_roles_come_from_the_program():
    model = MODELS["mlp"]
    step = trace_step(sw.jit(training_step(model)), (structs(model.state()), structs(model.examples())))
    assert step.roles == ("state",) * 3 + ("parameter",) * 3 + ("batch",) * 2
    assert [step.request.out_names[step.next_outputs[n]] for n in range(6)] == [
        step.request.out_names[n] for n in range(6)
    ]
    arrays = trace_step(sw.jit(lambda w, x: (w - 0.1 * x.T @ x, x.sum())), (jnp.ones((8, 8)), jnp.ones((4, 8))))
    assert arrays.roles == ("state", "batch") and arrays.next_outputs == {0: 0}
