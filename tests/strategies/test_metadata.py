"""The partitioning metadata of Flax's variables."""

from dataclasses import dataclass, field, replace

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies


@dataclass
class Variable:
    """A variable of Flax NNX, with the attributes that `nnx.get_partition_spec` reads."""

    stored: object
    metadata: dict = field(default_factory=dict)

    def get_value(self):
        return self.stored

    def get_metadata(self):
        return self.metadata

    def replace(self, value):
        return replace(self, stored=value)


class OlderVariable(Variable):
    """A variable before Flax 0.12."""

    get_value = property()  # it has none

    @property
    def value(self):
        return self.stored


@dataclass
class Partitioned:
    """A box of Flax Linen."""

    value: object
    names: tuple

    def replace_boxed(self, value):
        return replace(self, value=value)


def test_partitioning_metadata_of_flax(mesh):
    params = {
        "nnx": Variable(np.zeros((8, 6)), {"out_sharding": ("embed", "mlp")}),
        "older": OlderVariable(np.zeros((8, 6)), {"sharding": ("data", None)}),
        "plain": Variable(np.zeros(3)),
        "linen": Partitioned(sw.ShapeDtypeStruct((8, 4), jnp.float32), (None, ("data", "mlp"))),
        "both": Variable(np.zeros((8, 6)), {"out_sharding": P("data", "model")}),
        "array": np.zeros(5),
        "count": Variable(3, {"out_sharding": ("data",)}),
    }
    chosen = strategies.partition_metadata(params, mesh, {"embed": None, "mlp": "model"}, allow_uneven=True)
    assert isinstance(chosen["nnx"], Variable) and isinstance(chosen["linen"], Partitioned)
    found = {name: getattr(node, "stored", getattr(node, "value", node)) for name, node in chosen.items()}
    specs = {name: None if sharding is None else sharding.spec for name, sharding in found.items()}
    assert specs == {
        "nnx": P(None, "model"),
        "older": P("data"),
        "plain": P(),
        "linen": P(None, ("data", "model")),
        "both": P("data", "model"),
        "array": P(),
        "count": None,
    }
