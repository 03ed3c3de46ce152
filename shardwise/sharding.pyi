from shardwise.api.config_contexts import no_collectives as no_collectives
from shardwise.api.meshes.axis_types import auto_axes as auto_axes, explicit_axes as explicit_axes
from shardwise.api.meshes.current_mesh import (
    get_abstract_mesh as get_abstract_mesh,
    get_mesh as get_mesh,
    set_mesh as set_mesh,
    use_abstract_mesh as use_abstract_mesh,
    use_mesh as use_mesh,
)
from shardwise.api.meshes.placement import reshard as reshard
from shardwise.compiler.ir.types import ManualAxisType as ManualAxisType
from shardwise.compiler.shardings.mesh import (
    AbstractDevice as AbstractDevice,
    AbstractMesh as AbstractMesh,
    AxisType as AxisType,
    Mesh as Mesh,
)
from shardwise.compiler.shardings.named_sharding import NamedSharding as NamedSharding
from shardwise.compiler.shardings.sharding import Sharding as Sharding
from shardwise.compiler.shardings.spec import PartitionSpec as PartitionSpec
from shardwise.compiler.shardings.unreduced_kind import UnreducedKind as UnreducedKind
from shardwise.runtime.sharding import (
    PositionalSharding as PositionalSharding,
    SingleDeviceSharding as SingleDeviceSharding,
    make_single_device_sharding as make_single_device_sharding,
)
