"""Plans that `explain` returns: names of outputs, pins and lines of loops."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.explain.arguments import shaped


def test_outputs_are_named_by_their_tree_path(mesh):
    found = sw.explain(lambda x: {"loss": x.sum(), "aux": [x, (x * 2,)]})(shaped(mesh, P("data"), 64, 64))
    names = ["`output['aux'][0]`", "`output['aux'][1][0]`", "`output['loss']`"]
    assert [row.name for row in found.plan.outputs] == names
    assert found.collectives[0].reason.endswith("; `output['loss']` needs it reduced")
    single = sw.explain(lambda x: x.sum())(shaped(mesh, P("data"), 64, 64))
    assert [row.name for row in single.plan.outputs] == ["`output`"]


def test_in_shardings_are_named_with_the_line_of_jit(mesh):
    columns = NamedSharding(mesh, P(None, "data"))
    step = sw.jit(lambda batch: batch["x"] * 2, in_shardings=({"x": columns},))
    line = test_in_shardings_are_named_with_the_line_of_jit.__code__.co_firstlineno + 2
    found = sw.explain(step)({"x": shaped(mesh, P("data"), 64, 64)})
    requested = f"in_shardings for `batch['x']` at test_explain.py:{line}"
    assert [row.reason for row in found.collectives] == [
        f"`batch['x']` has sharding P('data', None); {requested} needs P(None, 'data')"
    ]
    assert found.plan.values[-1].pins == (requested,)
    nested = sw.explain(lambda x: step({"x": x}))(shaped(mesh, P("data"), 64, 64))
    assert "in_shardings for `batch['x']` at test_explain.py:" in nested.collectives[0].reason


@pytest.mark.parametrize(
    "transform", [sw.grad, lambda f: sw.grad(sw.checkpoint(f)), sw.jit], ids=["grad", "remat", "jit"]
)
def test_scans_with_equal_bodies_keep_their_own_lines(mesh, transform):
    def first(h, w):
        return jnp.tanh(h @ w), None

    def second(h, w):
        return jnp.tanh(h @ w), None

    def loss(w, x):
        return lax.scan(second, lax.scan(first, x, w)[0], w)[0].sum()

    found = sw.explain(transform(loss))(shaped(mesh, P(None, "data"), 3, 64, 64), shaped(mesh, P("data"), 256, 64))
    lines = [f.__code__.co_firstlineno + 1 for f in (first, second)]
    counts = {line: sum(f"dot at test_explain.py:{line}" in row.reason for row in found.collectives) for line in lines}
    assert counts[lines[0]] == counts[lines[1]] > 0


def test_a_function_that_only_calls_a_jitted_one_shows_all_results_of_it(mesh):
    """A wrapper such as `nnx.jit` writes some results into objects: they are no results of the wrapper."""
    step = sw.jit(lambda x: (x.sum(), x @ x.T))
    state = []

    def wrapper(x):
        loss, update = step(x)
        state.append(update)
        return loss

    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data", "model")))
    explanation = sw.explain(wrapper, advise=False)(x)
    assert explanation.counts() == sw.explain(step, advise=False)(x).counts()
    assert [row.name for row in explanation.plan.outputs] == ["`output`", "update 0"]
    assert sw.explain(sw.jit(wrapper), advise=False)(x).counts() == {"all_reduce": 1}


def test_the_plan_is_printed_once(mesh, capsys):
    """The repr of the result, which an interactive prompt shows below it, has one line."""
    plan = sw.explain(jnp.sin, advise=False)(shaped(mesh, P("data"), 8))
    assert capsys.readouterr().out == f"{plan}\n"
    assert repr(plan).startswith("<plan of sin on mesh data=4, model=2: no collectives") and "\n" not in repr(plan)


def test_a_cell_shows_the_plan_once(mesh, ipython, capsys):
    plan = sw.explain(jnp.sin, advise=False)(shaped(mesh, P("data"), 8))
    plan._ipython_display_()  # IPython calls it if the call is the last expression of the cell
    assert ipython.outputs == [{"text/plain": str(plan), "text/html": plan._repr_html_()}]
    assert capsys.readouterr().out == ""
    ipython.execution_count += 1
    plan._ipython_display_()  # `plan` is the last expression of the next cell
    assert len(ipython.outputs) == 2
