"""Equinox: of `equinox.internal`, loops with reverse-mode derivatives, buffers, ω, `noinline`, `finalise_fn`."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import explain, report, shard

values = shard(np.linspace(0.1, 0.8, 8).astype(np.float32), "data")


def loop(kind, x, count):
    def condition(carry):
        step, _ = carry
        return step < count

    def body(carry):
        step, x = carry
        return step + 1, jnp.sin(x) + 0.1 * step

    return eqxi.while_loop(condition, body, (0, x), max_steps=32, kind=kind)[1]


for kind in ("lax", "bounded", "checkpointed"):
    report(f"{kind} loop", jax.jit(lambda x, kind=kind: loop(kind, x, 9))(values))
    report(f"{kind} loop of a batch", jax.vmap(lambda x, n, kind=kind: loop(kind, x, n))(values, jnp.arange(8)))
for kind in ("bounded", "checkpointed"):
    report(f"gradient of the {kind} loop", jax.jit(jax.grad(lambda x, kind=kind: jnp.sum(loop(kind, x, 9))))(values))
    explain(jax.jit(jax.value_and_grad(lambda x, kind=kind: jnp.sum(loop(kind, x, 9)))), values)
    gradients = jax.vmap(jax.grad(lambda x, n, kind=kind: loop(kind, x, n)))(values, jnp.arange(8))
    report(f"gradient of the {kind} loop of a batch", gradients)


def history(x):
    def body(carry):
        step, x, buffer = carry
        return step + 1, jnp.cos(x), buffer.at[step].set(x)

    start = (0, x, jnp.zeros(10))
    carry = eqxi.while_loop(
        lambda carry: carry[0] < 7, body, start, max_steps=10, buffers=lambda carry: carry[2], kind="checkpointed"
    )
    return jnp.sum(carry[2] ** 2)


report("buffers", jax.jit(jax.value_and_grad(history))(0.4))
report("buffers of a batch", jax.vmap(jax.grad(history))(values))
report("scan", eqxi.scan(lambda c, x: (c * x, c + x), 1.0, values, kind="checkpointed", checkpoints=3)[1])
tree = {"a": values, "b": (2 * values,)}
report("omega", (tree**eqxi.ω + 2 * tree**eqxi.ω).ω["b"][0])
report("unvmap", jax.vmap(lambda x: eqxi.unvmap_max(jnp.int32(10 * x)) + 0 * x)(values))
slow = eqxi.noinline(lambda x, y: jnp.sin(x) * y)
report("noinline", slow(values, values))
report("noinline in jit", eqx.filter_jit(slow)(values, values))
report("noinline in grad", jax.jit(jax.grad(lambda x: jnp.sum(slow(x, x))))(values))
report("noinline in vmap", jax.jit(jax.vmap(lambda x: slow(x, x)))(values))
report("nontraceable", jax.jit(eqxi.nontraceable)(values))
report("nextafter", eqxi.nextafter(values) > values)
report("string", str(eqxi.str2jax("text")))
finalised = eqxi.finalise_fn(lambda x: loop("lax", x, 3))
report("finalise", finalised(values))
for name, function in {
    "nondifferentiable": jax.grad(lambda x: jnp.sum(eqxi.nondifferentiable(x))),
    "nondifferentiable_backward": jax.grad(lambda x: jnp.sum(eqxi.nondifferentiable_backward(x))),
    "nonbatchable": jax.vmap(eqxi.nonbatchable),
}.items():
    try:
        function(values)
    except (RuntimeError, ValueError) as error:
        report(name, type(error).__name__)
