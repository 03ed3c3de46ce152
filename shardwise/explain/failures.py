"""Failures: what interrupts a long job, what recovery costs, and the policies of recovery to compare."""

import math
from dataclasses import dataclass, fields
from typing import final

_DAY = 86400.0
_LLAMA3_RATE = 419 / (16384 * 54)  # unexpected interruptions per device and day, published for Llama 3 405B
_LLAMA3_HARDWARE = 0.78  # of which failed hardware was the cause
_LLAMA3_NETWORK = 35 / 419  # of which switches and cables of the network were the cause
_NODES_PER_SPARE = 256
_MOST = 1e12  # so that sums and products are finite
SHORTEST_INTERVAL = 1e-6  # seconds between saves


@final
@dataclass(frozen=True)
class RecoveryPolicy:
    """How a job continues after a failure.

    Attributes:
        name: its name in tables.
        snapshots: whether processes keep snapshots in the memory of their peers. Without them, all processes are
            started anew after a failure, and restore the newest checkpoint on disk.
        spares: whether spare nodes are ready to take the place of failed ones.
        shrinks: whether the job continues with fewer replicas while nodes are missing, and grows when they return.
            Without it, the job waits for them.

    Raises:
        ValueError: if it shrinks without snapshots.

    Example:
        >>> elastic = jax.RecoveryPolicy("elastic", snapshots=True, spares=True, shrinks=True)
        >>> jax.Failures(policies=(elastic,)).policies[0].name
        'elastic'
    """

    name: str
    snapshots: bool = False
    spares: bool = False
    shrinks: bool = False

    def __post_init__(self) -> None:
        if self.shrinks and not self.snapshots:
            raise ValueError(
                f"RecoveryPolicy {self.name!r}: shrinks=True needs snapshots=True: the processes that continue restore "
                "the state from each other's memory"
            )


POLICIES = (
    RecoveryPolicy("disk"),
    RecoveryPolicy("disk, spares", spares=True),
    RecoveryPolicy("memory", snapshots=True),
    RecoveryPolicy("memory, shrink", snapshots=True, shrinks=True),
    RecoveryPolicy("memory, spares", snapshots=True, spares=True),
    RecoveryPolicy("memory, spares, shrink", snapshots=True, spares=True, shrinks=True),
)


@final
@dataclass(frozen=True)
class Failures:
    """What interrupts a long job, and what recovery costs. Durations are in seconds.

    The times between interruptions are exponential, with a rate that is proportional to the devices that train. The
    default rates are those that Meta has published for 54 days of Llama 3 405B on 16,384 GPUs. The other defaults are
    assumptions: replace them by what you measure.

    Attributes:
        days: the days of the job.
        per_device_day: unexpected interruptions per device and day.
        node_share: the share of interruptions after which the node is replaced. After the others, its processes start
            again on the same node.
        wide_share: the share of interruptions that take the memory of many nodes, such as failed switches; the
            nodes themselves return. The job then restores the newest checkpoint on disk.
        devices_per_node: the devices that fail together.
        processes_per_node: the processes of a node, each of which keeps snapshots of its devices in host memory.
        replica_nodes: the nodes of a data-parallel replica: a job shrinks and grows by whole replicas.
        spare_nodes: the spare nodes of policies with spares; by default, one per 256 nodes.
        replacement_seconds: from the failure of a node until it, or another one, is ready in its place.
        start_seconds: from the failure of a process until it is ready again on the same node.
        restart_seconds: until all processes have started anew and restored a checkpoint from disk.
        recovery_seconds: until processes that are ready continue from a snapshot in memory, also after a change of
            the mesh.
        snapshot_seconds: the time for which a snapshot stops training; by default, of a copy of the arguments of the
            simulated function to host memory.
        copy_seconds: until a snapshot is in the memory of the partner, beside training; by default, of a copy of the
            arguments over the links between nodes.
        checkpoint_seconds: the time for which a checkpoint stops training; by default, that of a snapshot.
        write_seconds: until a checkpoint is on disk, beside training.
        snapshot_interval: seconds of training between snapshots; by default, chosen.
        checkpoint_interval: seconds of training between checkpoints; by default, chosen.
        policies: the policies to compare.
        trials: the number of simulated jobs per policy.
        seed: the seed of the random failures. All policies have the same one.

    Raises:
        TypeError: if `policies` has other objects than policies.
        ValueError: if a value is out of range.

    Example:
        >>> failures = jax.Failures(days=30, devices_per_node=4, recovery_seconds=5)
        >>> failures.spares_of(4096)
        4
    """

    days: float = 54.0
    per_device_day: float = _LLAMA3_RATE
    node_share: float = _LLAMA3_HARDWARE - _LLAMA3_NETWORK
    wide_share: float = _LLAMA3_NETWORK
    devices_per_node: int = 8
    processes_per_node: int = 1
    replica_nodes: int = 1
    spare_nodes: int | None = None
    replacement_seconds: float = 3600.0
    start_seconds: float = 60.0
    restart_seconds: float = 300.0
    recovery_seconds: float = 3.0
    snapshot_seconds: float | None = None
    copy_seconds: float | None = None
    checkpoint_seconds: float | None = None
    write_seconds: float = 60.0
    snapshot_interval: float | None = None
    checkpoint_interval: float | None = None
    policies: tuple[RecoveryPolicy, ...] = POLICIES
    trials: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "policies" or (value is None and field.default is None):
                continue
            if field.type in (int, int | None) and not isinstance(value, int):
                raise ValueError(f"Failures: {field.name} must be an integer, not {value!r}")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"Failures: {field.name} must be a number, not {value!r}")
            if not 0 <= value < math.inf and field.name != "seed":
                raise ValueError(f"Failures: {field.name} must be finite and not negative, not {value}")
            if abs(value) > _MOST:
                raise ValueError(f"Failures: {field.name} must be at most {_MOST:g}")
        for name in ("days", "devices_per_node", "processes_per_node", "replica_nodes", "trials"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Failures: {name} must be positive, not {getattr(self, name)}")
        if self.devices_per_node % self.processes_per_node:
            raise ValueError(
                f"Failures: processes_per_node ({self.processes_per_node}) must divide devices_per_node "
                f"({self.devices_per_node}): each process has as many devices"
            )
        for name in ("snapshot_interval", "checkpoint_interval"):
            value = getattr(self, name)
            if value is not None and value < SHORTEST_INTERVAL:
                raise ValueError(
                    f"Failures: {name} must be at least {SHORTEST_INTERVAL:g} seconds, or None to choose it, "
                    f"not {value}"
                )
        snapshots, checkpoints = self.snapshot_interval, self.checkpoint_interval
        if snapshots is not None and checkpoints is not None and snapshots > checkpoints:
            raise ValueError(
                f"Failures: snapshot_interval ({snapshots}) must not exceed checkpoint_interval ({checkpoints}): a "
                "checkpoint follows a snapshot"
            )
        if self.node_share + self.wide_share > 1:
            raise ValueError(
                f"Failures: node_share ({self.node_share}) and wide_share ({self.wide_share}) are shares of all "
                "interruptions: their sum must be at most 1"
            )
        if not isinstance(self.policies, (tuple, list)) or not all(
            isinstance(policy, RecoveryPolicy) for policy in self.policies
        ):
            raise TypeError(f"Failures: policies must be a tuple of RecoveryPolicy, not {self.policies!r}")
        if not self.policies:
            raise ValueError("Failures: policies must have at least one RecoveryPolicy")

    @property
    def seconds(self) -> float:
        """The seconds of the job."""
        return self.days * _DAY

    def expected_interruptions(self, devices: int) -> float:
        """Return the expected number of interruptions of a job that always trains on some devices."""
        return self.per_device_day * devices * self.days

    def nodes_of(self, devices: int) -> int:
        """Return the number of nodes of a job on some devices."""
        return -(-devices // self.devices_per_node)

    def spares_of(self, devices: int) -> int:
        """Return the number of spare nodes of policies with spares, for a job on some devices."""
        return -(-self.nodes_of(devices) // _NODES_PER_SPARE) if self.spare_nodes is None else self.spare_nodes
