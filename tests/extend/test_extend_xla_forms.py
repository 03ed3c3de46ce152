"""extend.sharding and extend.mlir: XLA's own forms of shardings and modules."""

import pytest

import shardwise as sw
from shardwise.errors import UnsupportedError
from shardwise.extend import mlir, sharding


def test_shardings_are_serialized():
    replicated = sharding.get_hlo_sharding_from_serialized_proto(b"")
    assert replicated.is_replicated()
    tiled = type(replicated).iota_tile((2, 1))
    again = sharding.get_hlo_sharding_from_serialized_proto(sharding.get_serialized_proto_from_hlo_sharding(tiled))
    assert again == tiled and not again.is_replicated()
    with pytest.raises(UnsupportedError, match="Use NamedSharding"):
        sharding.GSPMDSharding(sw.devices(), tiled)


def test_modules_are_serialized():
    text = sw.jit(lambda x: x * 2).lower(1.0).as_text()
    artifact = mlir.serialize_portable_artifact(text, "1.0.0")
    with mlir.ir.Context() as context:
        mlir.dialects.stablehlo.register_dialect(context)
        module = mlir.deserialize_portable_artifact(artifact, context)
    assert "stablehlo.multiply" in str(module)
    with pytest.raises(UnsupportedError, match="own-ops"):
        mlir.lower_with_sharding_in_types(None, None, None)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mlir.dialects.nothing
