"""jax.experimental.topologies: the devices of a platform, to make meshes of."""

from collections.abc import Sequence
from typing import final

from shardwise.base._jaxlib import Device
from shardwise.base.lazy import publish
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.errors import UnsupportedError
from shardwise.experimental.mesh_utils import create_device_mesh
from shardwise.runtime.client import devices as all_devices


@final
class TopologyDescription:
    """The devices of a platform.

    Attributes:
        devices: the devices.

    Example:
        >>> jax.experimental.topologies.TopologyDescription(jax.devices()).devices == jax.devices()
        True
    """

    def __init__(self, devices: list[Device]):
        self.devices = devices


def get_attached_topology(platform: str | None = None) -> TopologyDescription:
    """Return the devices of a platform of this process.

    Args:
        platform: the name of the platform; by default the one that programs run on.

    Returns:
        The topology.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> jax.experimental.topologies.get_attached_topology().devices == jax.devices()
        True
    """
    return TopologyDescription(all_devices(platform))


def get_topology_desc(topology_name: str = "", platform: str | None = None, **kwargs: object) -> TopologyDescription:
    """Raise an error: devices that are not present have no plugin here. An AbstractMesh stands for them.

    Args:
        topology_name: the name of a topology.
        platform: the name of the platform.
        **kwargs: options of the platform.

    Returns:
        Nothing.

    Raises:
        UnsupportedError: always.

    Example:
        >>> jax.experimental.topologies.get_topology_desc("v5e:2x2", "tpu")
        Traceback (most recent call last):
        shardwise.errors.UnsupportedError: ...
    """
    raise UnsupportedError(
        f"get_topology_desc: the topology {topology_name!r} of {platform!r} is not available. Lower for devices that "
        "are not present with ShapeDtypeStructs on an AbstractMesh, and `simulate` the program there; "
        "`get_attached_topology()` has the devices of this process."
    )


def make_mesh(
    topo: TopologyDescription,
    mesh_shape: Sequence[int],
    axis_names: tuple[str, ...],
    *,
    contiguous_submeshes: bool = False,
) -> Mesh:
    """Make a mesh of the devices of a topology.

    Args:
        topo: the topology.
        mesh_shape: the sizes of the axes.
        axis_names: the names of the axes.
        contiguous_submeshes: as in `mesh_utils.create_device_mesh`.

    Returns:
        The mesh.

    Raises:
        ValueError: if the number of devices is not the product of the sizes.

    Example:
        >>> topology = jax.experimental.topologies.TopologyDescription(jax.devices()[:4])
        >>> dict(jax.experimental.topologies.make_mesh(topology, (2, 2), ("x", "y")).shape)
        {'x': 2, 'y': 2}
    """
    grid = create_device_mesh(mesh_shape, list(topo.devices), contiguous_submeshes=contiguous_submeshes)
    return Mesh(grid, axis_names)


publish(__name__)
