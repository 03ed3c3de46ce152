"""jax.extend.sharding: shardings in XLA's own forms."""

from typing import Any

from shardwise.base._jaxlib import HloSharding, OpSharding
from shardwise.base.lazy import publish
from shardwise.errors import UnsupportedError


class GSPMDSharding:
    """JAX's sharding by an annotation of XLA's partitioner, which is not supported: creating one is an error.

    Args:
        *args: the devices and the annotation.
        **keywords: JAX's options.

    Raises:
        UnsupportedError: always.

    Example:
        >>> jax.extend.sharding.GSPMDSharding(jax.devices(), None)
        Traceback (most recent call last):
        shardwise.errors.UnsupportedError: ...
    """

    def __init__(self, *args: object, **keywords: object):
        raise UnsupportedError(
            "GSPMDSharding: Shardwise partitions programs itself, and not with XLA's partitioner. Use "
            "NamedSharding(mesh, spec), or PositionalSharding(devices)."
        )


def get_op_sharding_from_serialized_proto(sharding: bytes) -> Any:
    """Read an `OpSharding` message.

    Args:
        sharding: the serialized message.

    Returns:
        jaxlib's `OpSharding`.

    Raises:
        RuntimeError: if the bytes are no such message.

    Example:
        >>> type(jax.extend.sharding.get_op_sharding_from_serialized_proto(b"")).__name__
        'OpSharding'
    """
    message = OpSharding()
    message.ParseFromString(sharding)
    return message


def get_hlo_sharding_from_serialized_proto(sharding: bytes) -> Any:
    """Read an `OpSharding` message as XLA's sharding.

    Args:
        sharding: the serialized message.

    Returns:
        jaxlib's `HloSharding`.

    Raises:
        RuntimeError: if the bytes are no such message.

    Example:
        >>> jax.extend.sharding.get_hlo_sharding_from_serialized_proto(b"").is_replicated()
        True
    """
    return HloSharding.from_proto(get_op_sharding_from_serialized_proto(sharding))


def get_serialized_proto_from_hlo_sharding(sharding: Any) -> bytes:
    """Serialize XLA's sharding as an `OpSharding` message.

    Args:
        sharding: jaxlib's `HloSharding`.

    Returns:
        The serialized message.

    Raises:
        AttributeError: if `sharding` is something else.

    Example:
        >>> replicated = jax.extend.sharding.get_hlo_sharding_from_serialized_proto(b"")
        >>> jax.extend.sharding.get_serialized_proto_from_hlo_sharding(replicated)
        b''
    """
    return bytes(sharding.to_proto().SerializeToString())


publish(__name__)
