"""custom_remat: what reverse mode saves and recomputes is chosen by rules, inside and outside of `checkpoint`."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoint_policies as policies


def function(calls=()):
    """Return `n * sin(x)`, which saves a cosine. `calls` records the policies."""

    def forward(policy, x, n):
        if isinstance(calls, list):
            calls.append(policy)
        return n * jnp.sin(x), jnp.cos(x)

    return sw.custom_remat(
        lambda x, n: n * jnp.sin(x),
        forward,
        lambda cosine, x, n: (n * jnp.sin(x), (cosine, n)),
        lambda residuals, cotangent: (residuals[0] * residuals[1] * cotangent,),
        static_argnums=1,
    )


@pytest.mark.parametrize("wrap", [lambda f: f, sw.checkpoint, sw.jit], ids=["plain", "checkpoint", "jit"])
def test_derivatives(wrap):
    f = function()
    np.testing.assert_allclose(f(0.3, 2), 2 * np.sin(0.3), rtol=1e-6)
    np.testing.assert_allclose(sw.grad(wrap(lambda x: f(x * x, 2)))(0.3), 4 * 0.3 * np.cos(0.09), rtol=1e-6)
    mapped = sw.vmap(sw.grad(wrap(lambda x: f(x, n=2))))(jnp.arange(3.0))
    np.testing.assert_allclose(mapped, 2 * np.cos(np.arange(3)), rtol=1e-6)


def test_residuals_are_saved_and_not_recomputed():
    f = function()
    jaxpr = sw.make_jaxpr(sw.grad(sw.checkpoint(lambda x: f(jnp.exp(x), 2))))(0.3)
    forward, backward = [eqn.params["jaxpr"] for eqn in jaxpr.eqns if eqn.primitive.name == "checkpoint"]
    assert "cos" in {eqn.primitive.name for eqn in forward.eqns}
    assert "cos" not in {eqn.primitive.name for eqn in backward.eqns}


def test_rules_receive_the_policy():
    calls = []
    f = function(calls)
    sw.grad(f)(0.3, 2)
    sw.grad(sw.checkpoint(lambda x: f(x, 2)))(0.3)
    sw.grad(sw.checkpoint(lambda x: f(x, 2), policy=policies.dots_saveable))(0.3)
    assert calls == [policies.everything_saveable, policies.nothing_saveable, policies.dots_saveable]


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="custom_remat"):
        sw.custom_remat(jnp.sin, None, jnp.sin, jnp.sin)
    with pytest.raises(ValueError, match="static_argnames"):
        sw.custom_remat(lambda x: x, jnp.sin, jnp.sin, jnp.sin, static_argnames="n")
