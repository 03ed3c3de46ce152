"""Orbax (orbax-checkpoint): `StandardCheckpointer` and `CheckpointManager` save and restore sharded trees in one
process, also with other shardings.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.ecosystem.report import explain, mesh, report, shard

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
params = {
    "w": shard(rng.normal(size=(16, 8)).astype(np.float32), "data", "model"),
    "b": shard(np.arange(8, dtype=np.float32), "model"),
    "half": shard(rng.normal(size=(8, 4)).astype(jnp.bfloat16), None, "model"),
    "count": shard(np.int32(3)),
}


def abstract(x, spec):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))


def compare(name, restored):
    report(name, [float(jnp.abs(x.astype(jnp.float32)).sum()) for x in jax.tree.leaves(restored)])
    equal = jax.tree.map(lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), restored, params)
    report(f"{name} is equal", [str(x) for x in jax.tree.leaves(equal)])
    report(f"{name} specs", [str(tuple(x.sharding.spec)) for x in jax.tree.leaves(restored)])


with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / "standard", params)
    checkpointer.wait_until_finished()
    same = jax.tree.map(lambda x: abstract(x, x.sharding.spec), params)
    compare("standard", checkpointer.restore(folder / "standard", same))
    other = {"w": P("model"), "b": P("data"), "half": P(), "count": P()}
    compare("resharded", checkpointer.restore(folder / "standard", jax.tree.map(abstract, params, other)))
    metadata = checkpointer.metadata(folder / "standard").item_metadata
    report("shapes", [str(tuple(x.shape)) for x in jax.tree.leaves(dict(metadata))])


@jax.jit
def step(state, x):
    params, optimizer_state = state
    value, grads = jax.value_and_grad(lambda params: ((x @ params["w"] + params["b"]) ** 2).mean())(params)
    updates, optimizer_state = optax.adam(0.1).update(grads, optimizer_state)
    return (optax.apply_updates(params, updates), optimizer_state), value


weights = {"w": params["w"], "b": params["b"]}
state = (weights, optax.adam(0.1).init(weights))
x = shard(rng.normal(size=(32, 16)).astype(np.float32), "data")
explain(step, state, x)
losses = []
with ocp.CheckpointManager(folder / "run", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
    for number in range(4):
        state, loss = step(state, x)
        losses.append(float(loss))
        manager.save(number, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    report("steps", [str(number) for number in manager.all_steps()])
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    restored = manager.restore(2, args=ocp.args.StandardRestore(template))
_, again = step(restored, x)
report("losses", [*losses, float(again)])
