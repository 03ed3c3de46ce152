"""checkpoint: the same derivatives with less memory; policies select the saved values."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.ad_checkpoint import checkpoint_name
from shardwise.execute.request import partition_request
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
W = [(RNG.normal(size=(16, 16)) / 4).astype(np.float32) for _ in range(6)]
X = RNG.normal(size=(64, 16)).astype(np.float32)
policies = sw.checkpoint_policies


def block(x, w):
    return jnp.exp(-jnp.square(checkpoint_name(x @ w, "product")))


def loss(wrap):
    def total(ws, x):
        for w in ws:
            x = wrap(block)(x, w)
        return (x * x).sum()

    return total


def planned(function, *args):
    request, _ = sw.jit(function).request(args, {})
    return partition_request(request, request.target())[0]


def ops(function, *args):
    return Counter(equation.op.name for equation in planned(function, *args).local.program.equations)


@pytest.mark.parametrize(
    "policy", [None, policies.dots_saveable, policies.save_only_these_names("product")], ids=["none", "dots", "names"]
)
@pytest.mark.parametrize("outer", [lambda f: f, sw.jit], ids=["eager", "jit"])
def test_same_derivatives(policy, outer):
    plain, remat = (outer(sw.grad(loss(w))) for w in (lambda f: f, lambda f: sw.checkpoint(f, policy=policy)))
    for mine, other in zip(remat(W, X), plain(W, X), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_nested_with_everything():
    def f(x):
        return jnp.exp(x) * x

    def inner(g):
        return sw.checkpoint(lambda x: g(x) * 1.0)

    x = 0.7
    second = np.exp(x) * (x + 2)
    for wrap in (lambda g: g, sw.jit, sw.checkpoint):
        np.testing.assert_allclose(wrap(sw.grad(wrap(sw.grad(inner(wrap(f))))))(x), second, rtol=1e-5)
        np.testing.assert_allclose(wrap(sw.grad(inner(wrap(sw.grad(wrap(f))))))(x), second, rtol=1e-5)
        np.testing.assert_allclose(wrap(sw.jacfwd(inner(wrap(sw.grad(f)))))(x), second, rtol=1e-5)
        first = [np.exp(x) * (x + 1)] * 2
        np.testing.assert_allclose(sw.vmap(wrap(sw.grad(inner(f))))(jnp.full(2, x)), first, rtol=1e-5)
        mapped = sw.vmap(inner(wrap(f)))
        np.testing.assert_allclose(sw.vjp(mapped, jnp.full(2, x))[1](jnp.ones(2))[0], first, rtol=1e-5)


def counts(policy):
    found = ops(sw.grad(loss(lambda f: sw.checkpoint(f, policy=policy))), W, X)
    return found["dot"], found["exp"]


def test_policies_decide_what_is_rematerialized():
    layers = len(W)
    backward = 2 * layers - 1  # one product per weight, and one per input but the first
    without = ops(sw.grad(loss(lambda f: f)), W, X)
    assert (without["dot"], without["exp"]) == (layers + backward, layers)
    assert counts(policies.everything_saveable) == (layers + backward, layers)
    assert counts(None) == (2 * layers + backward, 2 * layers)
    assert counts(policies.nothing_saveable) == counts(None)
    assert counts(policies.dots_saveable) == (layers + backward, 2 * layers)
    assert counts(policies.dots_with_no_batch_dims_saveable) == counts(policies.dots_saveable)
    assert counts(policies.save_only_these_names("product")) == counts(policies.dots_saveable)
    assert counts(policies.save_only_these_names("other")) == counts(None)
    assert counts(policies.save_any_names_but_these("product")) == counts(None)
    assert counts(policies.save_any_names_but_these("other")) == counts(policies.dots_saveable)
    both = policies.save_from_both_policies(policies.nothing_saveable, policies.dots_saveable)
    assert counts(both) == counts(policies.dots_saveable)


def test_loops_recompute_constants_of_their_layers():
    @partial(sw.checkpoint, policy=lambda op, *types: op.name != "convert")
    def layer(x, w):
        return sw.nn.gelu((x @ w).astype(jnp.bfloat16)).astype(x.dtype)  # the derivative is in float32

    def total(ws, x):
        return (sw.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0] ** 2).sum()

    equations = planned(sw.grad(total), np.stack(W), X).local.program.equations
    constants = {value for equation in equations if equation.op.name == "full" for value in equation.outputs}
    loops = [equation for equation in equations if equation.op.name == "scan"]
    assert len(loops) == 2
    assert all(constants.isdisjoint(loop.inputs) for loop in loops)


def test_rematerialization_waits_for_the_cotangents():
    text = planned(sw.grad(loss(sw.checkpoint)), W, X).module.text
    barriers = [line for line in text.splitlines() if "optimization_barrier" in line]
    assert len(barriers) == len(W)
    assert all(line.count("tensor<64x16xf32>") >= 4 for line in barriers)  # the block's input and the cotangent, twice
    free = planned(sw.grad(loss(lambda f: sw.checkpoint(f, prevent_cse=False))), W, X).module.text
    assert "optimization_barrier" not in free


def test_on_eight_devices(mesh):
    x = sw.device_put(X[:30], NamedSharding(mesh, P("data")))
    ws = [sw.device_put(w, NamedSharding(mesh, P(None, "model"))) for w in W]
    expected = sw.grad(loss(lambda f: f))(W, X[:30])
    for mine, other in zip(sw.jit(sw.grad(loss(sw.checkpoint)))(ws, x), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_closures_static_arguments_and_forms():
    scale = jnp.full((3,), 2.0)

    @sw.remat(static_argnums=1, policy=policies.nothing_saveable)
    def power(x, n):
        for _ in range(n - 1):
            x = x * scale
        return x

    x = jnp.arange(3.0)
    np.testing.assert_allclose(power(x, 3), 4 * np.arange(3))
    np.testing.assert_allclose(sw.grad(lambda x: power(x, 3).sum())(x), [4, 4, 4])
    w = sw.grad(lambda w: sw.checkpoint(lambda y: jnp.exp(y * w))(2.0))(0.5)
    np.testing.assert_allclose(w, 2 * np.exp(1.0), rtol=1e-5)
    with pytest.raises(TypeError, match="checkpoint needs a function, not 3"):
        sw.checkpoint(3)
    with pytest.raises(
        TypeError,
        match="checkpoint: policy must be a function, such as one of checkpoint_policies, or None, not 'dots'",
    ):
        sw.checkpoint(jnp.exp, policy="dots")


def test_static_arguments_by_name():
    power = sw.checkpoint(lambda x, n: x**n if n else x, static_argnames="n")
    assert float(sw.jit(sw.grad(lambda x: power(x, n=3)))(2.0)) == 12.0


def test_static_arguments_need_not_be_hashable():
    powers = sw.checkpoint(lambda x, options: x ** options["n"], static_argnums=1)
    assert float(sw.jit(sw.grad(lambda x: powers(x, {"n": 3})))(2.0)) == 12.0


def test_offloaded_values_are_in_host_memory_until_the_backward_pass():
    def layer(w, x):
        return checkpoint_name(jnp.tanh(x @ w), "hidden") @ w

    def loss(policy):
        block = sw.checkpoint(layer, policy=policy)
        return lambda w, x: jnp.sum(block(w, x) ** 2)

    by_name = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    dots = policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    w, x = np.eye(4, dtype=np.float32) + 0.1, np.ones((3, 4), np.float32)
    expected = sw.grad(lambda w: jnp.sum(layer(w, x) ** 2))(w)
    for policy in (by_name, dots):
        lowered = sw.jit(sw.grad(loss(policy))).lower(w, x)
        assert lowered.as_text("program").count("in_memory[kind='pinned_host']") == 1
        np.testing.assert_allclose(lowered.compile()(w, x), expected, rtol=1e-5)

    def scanned(w, x):
        return sw.lax.scan(lambda x, _: (sw.checkpoint(layer, policy=by_name)(w, x), None), x, None, 3)[0].sum()

    np.testing.assert_allclose(
        sw.grad(scanned)(w, x), sw.grad(lambda w, x: layer(w, layer(w, layer(w, x))).sum())(w, x), rtol=1e-4
    )
    with pytest.raises(ValueError, match="offload_src must be 'device' and offload_dst 'pinned_host' or"):
        policies.offload_dot_with_no_batch_dims("device", "disk")
    with pytest.raises(ValueError, match="can be saved or offloaded, but not both"):
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"],
            names_which_can_be_offloaded=["a"],
            offload_src="device",
            offload_dst="pinned_host",
        )


def test_setting_recomputes_the_bodies_of_scans():
    def scanned(body):
        return lambda ws, x: jnp.sum(sw.lax.scan(lambda x, w: (body(x, w), None), x, ws)[0] ** 2)

    def stacked_bytes(body=block):
        stages = planned(sw.grad(scanned(body)), np.stack(W), X)
        loops = [equation for equation in stages.local.program.equations if equation.op.name == "scan"]
        return sum(value.type.nbytes for value in loops[0].outputs)

    saved, expected = {"none": stacked_bytes()}, sw.jit(sw.grad(scanned(block)))(np.stack(W), X)
    own = stacked_bytes(sw.checkpoint(block))
    for values in ("products", "all"):
        with sw.config.override("checkpoint_scans", values):
            saved[values] = stacked_bytes()
            assert stacked_bytes(sw.checkpoint(block)) == own  # the body calls checkpoint itself
            gradients = sw.jit(sw.grad(scanned(block)))(np.stack(W), X)
        np.testing.assert_allclose(gradients, expected, rtol=1e-5, atol=1e-6)
    assert saved["all"] == own < saved["products"] <= saved["none"]


@pytest.mark.parametrize("static_argnums", [(), (1,)])
def test_a_function_is_traced_once_outside_of_other_traces(static_argnums):
    calls = []

    @partial(sw.checkpoint, static_argnums=static_argnums)
    def f(x, scale):
        calls.append(x)
        return jnp.sin(x) * scale, 3.0

    results = [f(x, 2.0) for x in (1.0, 2.0, 1.0)]
    assert len(calls) == 1
    np.testing.assert_allclose([y for y, _ in results], 2 * np.sin([1, 2, 1]), rtol=1e-6)
    assert all(isinstance(leaf, sw.Array) for leaf in sw.tree.leaves(results))
    f(np.float32(1), 3.0)
    assert len(calls) == 2


@pytest.mark.parametrize("transform", [lambda f: f, sw.jit])
def test_function_that_changes_a_ref_from_outside(transform):
    total = sw.new_ref(jnp.zeros(()))

    @sw.checkpoint
    def f(x):
        total[...] += x
        return x * 2

    assert [float(transform(f)(x)) for x in (1.0, 2.0)] == [2, 4]
    assert total[...] == 3


def test_a_ref_from_outside_is_not_differentiated():
    last = sw.new_ref(jnp.zeros(()))

    @sw.checkpoint
    def square(x):
        last[...] = sw.lax.stop_gradient(x)
        return x * x

    assert float(sw.grad(square)(3.0)) == 6 and last[...] == 3
