"""jax.experimental.topologies: the devices of a platform, or devices that are not present, to make meshes of."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.base._jaxlib import Device, topology_devices
from shardwise.base.lazy import publish
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.experimental.mesh_utils import create_device_mesh
from shardwise.runtime.client import create_topology
from shardwise.runtime.client import devices as all_devices


@final
class TopologyDescription:
    """Devices of one platform, which may be absent.

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


def get_topology_desc(topology_name: str = "", platform: str | None = None, **kwargs: Any) -> TopologyDescription:
    """Return devices that need not be present, for which programs can be compiled ahead of time.

    Pass ShapeDtypeStructs with shardings on a mesh of them to `jit(f).lower`. The compiled function has its optimized
    HLO, costs and memory, and can be serialized; it cannot be called.

    Args:
        topology_name: the name of the topology, such as "v5e:2x2" for TPUs. GPUs have none.
        platform: the platform, whose PJRT plugin must be installed; by default "tpu".
        **kwargs: options of the plugin. Those of GPUs: `topology`, such as "4x1x8" for four hosts with eight devices
            each (groups of hosts that NVLink connects × hosts of a group × devices of a host), and `target_config`, the
            description of the GPU in XLA's text format, if the machine has none.

    Returns:
        The topology.

    Raises:
        PlatformError: if the plugin is missing or cannot be loaded, or if it does not know the topology.

    Example:
        >>> jax.experimental.topologies.get_topology_desc("v5e:2x2", "tpu")
        Traceback (most recent call last):
        shardwise.errors.PlatformError: ...
    """
    topology = create_topology("tpu" if platform is None else platform, topology_name, kwargs)
    return TopologyDescription(topology_devices(topology))


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
