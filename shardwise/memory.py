"""jax.memory: the memories in which arrays can be."""

from enum import Enum

from shardwise.base.lazy import publish


class Space(Enum):
    """A memory, as a target of `device_put`: an array keeps its devices and its sharding.

    Attributes:
        Device: the memory of the devices, `memory_kind="device"`.
        Host: the pinned memory of the host, `memory_kind="pinned_host"`.
        Any: either; an array stays where it is.

    Example:
        >>> x = jax.device_put(jnp.ones(2), jax.memory.Space.Host)
        >>> x.sharding.memory_kind
        'pinned_host'
    """

    Device = 1
    Host = 2
    Any = 3

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"


publish(__name__)
