"""Scans over layers of ordinary functions as pipelines, compared with the scans."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.layer_scans import layer_scans
from shardwise.parallel.pipelined_scan import LayerScan, LayerScanRecorder, PipelinedScan

ROWS, WIDTH, LAYERS = 8, 6, 4
WEIGHTS = np.linspace(-0.5, 0.5, LAYERS * WIDTH * WIDTH, dtype=np.float32).reshape(LAYERS, WIDTH, WIDTH)
X = np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
SCALE = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)


def loss(weights, scale, x):
    """A scan over layers that reads an array besides, after a scan over a shorter stack."""
    x = lax.scan(lambda h, w: (h + w, None), x, scale[None])[0]
    y = lax.scan(sw.checkpoint(lambda h, w: (jnp.tanh(scale * (h @ w)), None)), x, weights)[0]
    return jnp.mean(y**2)


def recorded(function, *args):
    recorder = LayerScanRecorder()
    with layer_scans(recorder):
        sw.jit(function).trace(*args)
    return recorder.found


def test_scans_over_layers_are_recorded():
    found = recorded(sw.jit(sw.value_and_grad(loss)), WEIGHTS, SCALE, X)
    assert found == {LayerScan(SCALE.nbytes, 1, ROWS): [0], LayerScan(WEIGHTS.nbytes, LAYERS, ROWS): [1]}
    assert not recorded(lambda x: lax.scan(lambda h, w: (h @ w + h.mean(), None), x, WEIGHTS)[0], X)


@pytest.mark.parametrize(("axes", "microbatches"), [({"stage": 4, "data": 2}, 4), ({"data": 4, "stage": 2}, 2)])
def test_a_pipeline_has_the_loss_and_the_gradients_of_the_scan(axes, microbatches):
    mesh = sw.make_mesh(tuple(axes.values()), tuple(axes))
    step = sw.value_and_grad(loss, argnums=(0, 1))
    expected = step(WEIGHTS, SCALE, X)
    scan, positions = max(recorded(loss, WEIGHTS, SCALE, X).items())
    pipelined = sw.jit(PipelinedScan(scan, positions, mesh, "stage", microbatches).applied(step))
    assert "permute" not in sw.jit(step).lower(WEIGHTS, SCALE, X).as_text()
    assert "collective_permute" in pipelined.lower(WEIGHTS, SCALE, X).as_text()
    values = pipelined(WEIGHTS, SCALE, X)
    for value, other in zip(sw.tree.leaves(values), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


def test_equal_arrays_that_a_body_makes_are_no_obstacle():
    found = recorded(lambda x: lax.scan(lambda h, w: (h @ w * np.ones(WIDTH, np.float32), None), x, WEIGHTS)[0], X)
    assert found == {LayerScan(WEIGHTS.nbytes, LAYERS, ROWS): [0]}


def test_a_body_is_traced_for_other_rows_only_by_the_recorder():
    """A step that runs as a pipeline traces its body for microbatches, and not for twice the rows."""
    traced = []

    def body(h, w):
        traced.append(h.shape[0])
        return jnp.tanh(h @ w), None

    def both(x):  # two scans of one size, of which one reads the number of rows
        x = lax.scan(lambda h, w: (body(h, w)[0] / h.shape[0], None), x, WEIGHTS)[0]
        return lax.scan(body, x, WEIGHTS)[0]

    found = recorded(both, X)
    assert found == {LayerScan(WEIGHTS.nbytes, LAYERS, ROWS): [1]} and 2 * ROWS in traced
    traced.clear()
    mesh = sw.make_mesh((4, 2), ("stage", "data"))
    values = sw.jit(PipelinedScan(*max(found.items()), mesh, "stage", 4).applied(both))(X)
    assert set(traced) == {ROWS, ROWS // 4}
    np.testing.assert_allclose(values, both(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        lambda h, w: h @ w / h.shape[0],
        lambda h, w: lax.fori_loop(0, h.shape[0], lambda _, h: jnp.tanh(h @ w), h),
        lambda h, w: h @ w + h[:, h.shape[0] // 4 :][:, :1],
        lambda h, w: h @ w ** h.shape[0],
        lambda h, w: h @ w * np.full(WIDTH, 1 / h.shape[0], np.float32),
        lambda h, w: h @ w * jnp.full(WIDTH, 1 / h.shape[0]),
        lambda h, w: jnp.sin(h @ w) if h.shape[0] == ROWS else h @ w,
        lambda h, w: h.reshape(ROWS, 2, WIDTH // 2).reshape(h.shape) @ w,
    ],
    ids=["a factor", "iterations", "an index", "an exponent", "an array", "a full array", "a choice", "a fixed number"],
)
def test_scans_that_read_the_number_of_rows_are_no_layer_scans(body):
    """Such a body computes something else for a microbatch, although its rows are independent."""
    assert not recorded(lambda x: lax.scan(lambda h, w: (body(h, w), None), x, WEIGHTS)[0], X)
