"""Flax NNX (flax): a transformer with AdamW under data, fully sharded and tensor parallelism."""

import os

import jax
from flax import nnx

from benchmarks.flax_transformer import KINDS, Sizes, batches, create, make_mesh, train_step
from tests.ecosystem.report import report, spec_text

devices = int(os.environ["ECOSYSTEM_DEVICES"])
mesh, sizes = make_mesh(devices), Sizes(layers=1)
jax.set_mesh(mesh)


def shardings(tree):
    """Return the specs of all arrays of a pytree by shape."""
    found = {}
    for array in jax.tree.leaves(tree):
        found.setdefault(str(array.shape), set()).add(spec_text(array))
    return [f"{shape}: {sorted(specs)}" for shape, specs in sorted(found.items())]


kinds = ("data parallel", "FSDP", "tensor parallel") if devices > 1 else ("data parallel",)
for kind in kinds:
    parallel = KINDS[kind]
    model, optimizer = create(sizes, parallel)
    losses = [float(train_step(model, optimizer, tokens)) for tokens in batches(sizes, parallel, mesh, 4)]
    report(f"{kind}: losses", losses)
    if devices == 1:
        continue
    # What users write to shard a model that exists: the specs and the shardings of the annotations.
    specs = nnx.get_partition_spec(nnx.state(model, nnx.Param))
    named = nnx.get_named_sharding(nnx.state(model, nnx.Param), mesh)
    report(f"{kind}: specs", [str(spec) for spec in jax.tree.leaves(specs)])
    params = nnx.state(model, nnx.Param)
    for array, sharding in zip(jax.tree.leaves(params), jax.tree.leaves(named), strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim), (array.sharding, sharding)
    # The moments of AdamW are laid out like their parameters.
    report(f"{kind}: parameters", shardings(params))
    adam = optimizer.opt_state[0]
    assert shardings(nnx.state(adam.mu)) == shardings(params) == shardings(nnx.state(adam.nu)), shardings(adam.mu)
