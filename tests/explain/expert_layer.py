"""A layer whose devices exchange the tokens of their experts, for tests of `expert_imbalance`."""

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4,), ("data",))


def step(x, w):
    with sw.named_scope("experts"):
        x = lax.with_sharding_constraint(x, NamedSharding(MESH, P("data")))  # an all-to-all
        return jnp.einsum("etd,edf->etf", x, w)


def arguments():
    specs = P(None, "data"), P("data")
    return tuple(sw.ShapeDtypeStruct((4, 512, 512), jnp.bfloat16, sharding=NamedSharding(MESH, spec)) for spec in specs)
