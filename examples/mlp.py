"""Train an MLP with Megatron shardings on a 4×2 mesh, and compare with the same training on one device.

The batch is sharded along `data` (30 rows over 4 devices, which is uneven), the hidden dim along `model`. The
functions have no sharding annotations: Shardwise derives all shardings from those of the arguments.
"""

import numpy as np
from rich.console import Console
from rich.progress import track

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

BATCH, FEATURES, HIDDEN, OUTPUTS = 30, 16, 64, 4
STEPS, RATE = 60, 0.05

LAYOUTS = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}
ROWS = P("data", None)


def predict(params, x):
    hidden = jnp.maximum(x @ params["w1"] + params["b1"], 0.0)
    return hidden @ params["w2"] + params["b2"]


def loss(params, x, y):
    return jnp.mean(jnp.square(predict(params, x) - y))


@sw.jit
def train_step(params, x, y):
    value, grads = sw.value_and_grad(loss)(params, x, y)
    return sw.tree.map(lambda p, g: p - RATE * g, params, grads), value


def initial_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUTPUTS), "b2": (OUTPUTS,)}
    return {k: (rng.normal(size=s) / np.sqrt(s[0])).astype(np.float32) for k, s in shapes.items()}


def batch(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, FEATURES)).astype(np.float32)
    return x, np.maximum(x @ rng.normal(size=(FEATURES, OUTPUTS)), 0.0).astype(np.float32)


def shard(mesh, params, x, y):
    """Return the arguments of `train_step`, sharded over the mesh."""
    sharded_params = {k: sw.device_put(v, NamedSharding(mesh, LAYOUTS[k])) for k, v in params.items()}
    rows = NamedSharding(mesh, ROWS)
    return sharded_params, sw.device_put(x, rows), sw.device_put(y, rows)


def train(params, x, y, steps=STEPS, show=lambda steps: steps):
    losses = []
    for _ in show(range(steps)):
        params, value = train_step(params, x, y)
        losses.append(float(value))
    return params, losses


def curve(losses, height=8):
    """Return the losses as a bar chart in text."""
    highest = max(losses)
    rows = []
    for level in range(height, 0, -1):
        bars = "".join("█" if value >= highest * (level - 0.5) / height else " " for value in losses)
        rows.append(f"{highest * level / height:8.3f} ┤{bars}")
    return "\n".join([*rows, f"{'':8} └{'─' * len(losses)} {len(losses)} steps"])


def main():
    console = Console()
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    params, (x, y) = initial_params(), batch()
    sharded = shard(mesh, params, x, y)

    console.rule("shardings")
    for name, array in (("x", sharded[1]), ("w1", sharded[0]["w1"]), ("w2", sharded[0]["w2"])):
        console.print(f"{name}: {array.sharding.spec}")
        sw.debug.visualize_array_sharding(array, console=console)

    console.rule("the plan of the forward pass")
    sw.explain(predict)(sharded[0], sharded[1])
    console.rule("the plan of a training step")
    sw.explain(train_step)(*sharded)

    console.rule(f"training on {mesh.size} devices, then on one")
    many, losses = train(*sharded, show=lambda steps: track(steps, "8 devices", console=console))
    one, expected = train(params, x, y, show=lambda steps: track(steps, "1 device ", console=console))
    print(curve(losses))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=1e-3, atol=1e-5)
    console.print(
        f"loss {losses[0]:.4f} → {losses[-1]:.4f}; every loss and parameter equals that of the one-device run "
        f"(largest difference of a loss: {max(abs(a - b) for a, b in zip(losses, expected, strict=True)):.1e})"
    )


if __name__ == "__main__":
    main()
