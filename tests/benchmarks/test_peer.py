"""The adapter for JAX: wire bytes of JAX's programs, worked out by hand; both libraries compute the same."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from benchmarks import ours, peer, programs  # noqa: E402
from benchmarks.counts import counts  # noqa: E402
from examples import mlp  # noqa: E402

pytestmark = pytest.mark.jax


def test_sum_over_one_axis_of_two():
    mesh = peer.mesh((4, 2), ("a", "b"))
    x = peer.put(np.ones((64, 16), np.float32), mesh, ("a", None))
    found = counts(peer.compiled(lambda x: x.sum(0), (x,)))
    assert found.wire.kinds() == {"all-reduce": 1}
    assert found.wire.sent == 2 * (16 * 4) * 3 / 4


def test_collectives_in_a_scan_count_once_per_iteration():
    mesh = peer.mesh((8,), ("x",))
    x = peer.put(np.ones((64, 16), np.float32), mesh, ("x", None))

    def inside(x):
        def turn(carry, _):
            return jax.lax.ppermute(carry, "x", [(i, (i + 1) % 8) for i in range(8)]) * 2, None

        return jax.lax.scan(turn, x, length=11)[0]

    spec = jax.sharding.PartitionSpec("x", None)
    function = jax.shard_map(inside, mesh=mesh, in_specs=spec, out_specs=spec)
    found = counts(peer.compiled(function, (x,))).wire
    assert found.kinds() == {"collective-permute": 11}
    assert found.sent == 11 * 8 * 16 * 4 and found.unknown_loops == 0


@pytest.mark.parametrize("sizes", [programs.EXAMPLE, programs.EXAMPLE_EVEN], ids=str)
def test_both_libraries_compute_the_example(sizes):
    layers, x, y = sizes.arguments()
    named = {"w1": layers[0]["w"], "b1": layers[0]["b"], "w2": layers[1]["w"], "b2": layers[1]["b"]}
    expected, loss = mlp.train_step(named, x, y)
    for side in (ours, peer):
        step, args = programs.on_mesh(side, sizes)
        (first, second), value = side.library.jit(step)(*args)
        np.testing.assert_allclose(np.asarray(value), np.asarray(loss), rtol=1e-5)
        for name, found in {"w1": first["w"], "b1": first["b"], "w2": second["w"], "b2": second["b"]}.items():
            np.testing.assert_allclose(np.asarray(found), np.asarray(expected[name]), rtol=1e-5, atol=1e-6)


def test_program_sends_the_bytes_of_the_example():
    params, (x, y) = mlp.initial_params(), mlp.batch()
    sharded_args = mlp.shard(ours.mesh(*programs.MESH), params, x, y)
    step, args = programs.on_mesh(ours, programs.EXAMPLE)
    example, here = counts(ours.compiled(mlp.train_step.function, sharded_args)), counts(ours.compiled(step, args))
    assert (example.wire.kinds(), example.wire.sent) == (here.wire.kinds(), here.wire.sent)
    assert (example.temp_bytes, example.flops) == (here.temp_bytes, here.flops)
