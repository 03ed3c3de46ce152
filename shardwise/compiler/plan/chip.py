"""Chip: the specs of a device and its links, and a time model of kernels and collectives that uses them.

- A matrix product runs in waves of output tiles over the cores of the chip. The time of a tile is its multiplications
  at the rate of one core, plus extra steps along k to fill the pipeline. If there are few tiles, k is split too. The
  memory traffic of a product is a lower bound of its time.
- The time of any other kernel is its memory traffic divided by the memory bandwidth.
- A gap follows every kernel before the next one starts.
- The time of a copy from or to the host is its bytes divided by the bandwidth of the host link.
- Kernels that run at the same time as a collective take longer, in proportion to the bytes that it sends.
- The time of a collective is the bytes that a device sends divided by the bandwidth of its ring, plus a latency per
  message (`ring.py`), which is longer between nodes. The op states its bytes and messages (`compiler/traffic.py`); of
  several algorithms, the fastest runs.

No program reaches the rates of data sheets. A chip therefore has fractions of the peak rates: of products, fused
attention, memory and links. They should be measured on the chip, and are never fitted to the run that is predicted.
`sources` says where each figure is from. What is assumed may be wrong by a fifth: `slowest` and `fastest` are the chip
at both ends.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.dtypes import DType, is_float8
from shardwise.compiler.ir.record import record
from shardwise.compiler.plan.ring import Ring
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic

_TILES = ((128, 256), (256, 128), (128, 128))  # the shapes of output tiles of large products
_FILL = 200  # steps along k that fill the pipeline of a tile
_ATTENTION_FILL = 500  # keys that fill the pipeline of a block of queries
_SPLITS = (1, 2, 4, 8, 16, 32)  # parts of k that are computed on different cores and added
_SPREAD = 0.2  # the share by which an assumed figure may be wrong
_MOST_INTERFERENCE = 0.95  # compute does not stop, however fast a collective is
ASSUMED = "assumed"
_TORUS_AXES = "torus_axes"


@final
@record
class Link:
    """A link of a device: the bytes per second that it sends, and the seconds of one message."""

    bandwidth: float
    latency: float


@final
@record
class Chip:
    """The specs of one device.

    Attributes:
        name: the name by which users choose it.
        device_kinds: substrings of PJRT's `device_kind` of such devices.
        bf16_flops, f32_flops: peak flops per second of dense matrix products at the default precision.
        f8_flops: peak flops per second of products of float8 operands; 0 if the chip has no units for them, and
            computes them at the rate of bf16.
        memory: bytes of memory.
        reserved_memory: bytes of it that no program can use: of the driver, the libraries and their communication
            buffers, and what the allocator cannot use because of fragmentation.
        memory_bandwidth: bytes per second between the chip and its memory.
        fast_link: the link within a node or slice.
        slow_link: the link between nodes or slices.
        slow_links: the number of slow links per device; 0.5 if two devices share one.
        oversubscription: how many times less bandwidth the network between nodes has than the slow links together.
        fast_domain_size: the number of devices that fast links connect.
        host_link: bytes per second between the memories of the device and the host, in both directions together; 0 if
            they are one memory.
        cores: the number of cores that compute tiles of a product at the same time.
        product_fraction: the fraction of the peak flops that large products reach.
        f8_product_fraction: the same fraction for products of float8 operands.
        memory_fraction: the fraction of the memory bandwidth that kernels reach.
        link_fraction: the fraction of the link bandwidth that collectives reach.
        attention_fraction: the fraction of the peak flops that fused attention reaches.
        attention_grad_ratio: the rate of the gradient of fused attention, relative to that of fused attention.
        kernel_gap: seconds between the end of a kernel and the start of the next.
        overlaps: whether collectives overlap with compute.
        interference: the fraction of the compute rate that is lost while a collective sends at the full rate of the
            fast links, because both share cores and memory bandwidth.
        torus_dims: the dims of the torus of the fast links; 1 for other networks.
        torus_axes: the axes of the torus along which a ring lies, each with the bandwidth of the fast link.
        platform: the platform that programs for it are traced for: "cpu", "gpu" or "tpu".
        product_workspace: bytes that the library of matrix products needs while it computes one.
        prediction_error: the relative error of predicted times, below which two plans are ties: the median error of the
            held-out published runs on this chip (docs/simulate.md); a tenth is assumed where there are none.
        sources: pairs of a figure's name and its source, which begins with "measured", "fitted" or "assumed". Other
            figures are those of data sheets.
    """

    name: str
    device_kinds: tuple[str, ...]
    bf16_flops: float
    f32_flops: float
    memory: int
    memory_bandwidth: float
    fast_link: Link
    slow_link: Link
    fast_domain_size: int
    slow_links: float = 1.0
    oversubscription: float = 1.0
    cores: int = 1
    product_fraction: float = 1.0
    f8_flops: float = 0.0
    f8_product_fraction: float = 1.0
    memory_fraction: float = 1.0
    link_fraction: float = 1.0
    attention_fraction: float = 1.0
    attention_grad_ratio: float = 1.0
    kernel_gap: float = 0.0
    overlaps: bool = False
    interference: float = 0.0
    torus_dims: int = 1
    torus_axes: int = 1
    platform: str = "cpu"
    host_link: float = 0.0
    product_workspace: int = 0
    reserved_memory: int = 0
    prediction_error: float = 0.1
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def usable_memory(self) -> int:
        """The bytes of memory that a program can use."""
        return self.memory - self.reserved_memory

    @property
    def assumed(self) -> tuple[str, ...]:
        """The names of the figures that nobody has measured or fitted."""
        return tuple(name for name, source in self.sources if source.startswith(ASSUMED))

    @property
    def slowest(self) -> "Chip":
        """The chip whose assumed figures are as bad as they may be."""
        return self._with_assumed(1 - _SPREAD)

    @property
    def fastest(self) -> "Chip":
        """The chip whose assumed figures are as good as they may be."""
        return self._with_assumed(1 + _SPREAD)

    def _with_assumed(self, rate: float) -> "Chip":
        """Return the chip with assumed fractions times `rate`, at most 1, and assumed times divided by it.

        The rate of the gradient of attention is relative to that of attention, with which it changes. Where the runtime
        places devices is not known either: a ring may lie along several axes of a torus, and never along less than one.
        """
        changed: dict[str, Any] = {
            name: min(1.0, getattr(self, name) * rate) if name.endswith("_fraction") else getattr(self, name) / rate
            for name in self.assumed
            if name not in ("attention_grad_ratio", _TORUS_AXES)
        }
        if "interference" in changed:
            changed["interference"] = min(_MOST_INTERFERENCE, changed["interference"])
        if _TORUS_AXES in self.assumed:
            changed[_TORUS_AXES] = self.torus_dims if rate > 1 else 1
        return replace(self, **changed)

    @property
    def sending_rate(self) -> float:
        """The bytes per second that a device sends over its fast links."""
        return self.fast_link.bandwidth * self.link_fraction

    def lost_rate(self, sent: float, seconds: float) -> float:
        """Return the fraction of the compute rate that is lost while a collective sends bytes in some seconds.

        It is proportional to the bytes per second: a collective that waits for slow links leaves compute alone.
        """
        return self.interference * min(1.0, sent / (self.sending_rate * seconds)) if seconds else 0.0

    def flops(self, dtype: DType) -> float:
        """Return the peak flops per second of matrix products of this dtype."""
        if self.f8_flops and is_float8(dtype):
            return self.f8_flops
        return self.bf16_flops if dtype.itemsize <= 2 else self.f32_flops

    def product_rate(self, dtype: DType) -> float:
        """Return the flops per second that large matrix products of this dtype reach."""
        has_f8 = self.f8_flops and is_float8(dtype)
        return self.flops(dtype) * (self.f8_product_fraction if has_f8 else self.product_fraction)

    def ring(self, mesh: AbstractMesh, axes: Sequence[str]) -> Ring:
        """Return the links between the devices along these axes.

        Devices of a mesh are in row-major order, node by node, so the last axes are within a node. Between nodes, a
        ring uses the slow links of all its devices in a node: a ring with one device per node uses one slow link, and a
        ring that includes all devices of the node uses all of them.
        """
        return self._ring_along(mesh, tuple(axes))

    @registered_cache(maxsize=4096)
    def _ring_along(self, mesh: AbstractMesh, axes: tuple[str, ...]) -> Ring:
        count = mesh.extent(axes)
        in_node = self._devices_in_node(mesh, axes) if self.crosses_nodes(mesh, axes) else count
        return self._ring(count, in_node, min(self.torus_axes, self._free_torus_dims(mesh, axes)))

    @cached_property
    def _hash(self) -> int:
        return hash(tuple([getattr(self, field.name) for field in fields(self)]))

    def __hash__(self) -> int:
        return self._hash

    def crosses_nodes(self, mesh: AbstractMesh, axes: Sequence[str]) -> bool:
        """Return whether the devices along these axes are in several nodes or slices."""
        return _span(mesh, axes) > self.fast_domain_size

    def ring_of(self, devices: Sequence[int]) -> Ring:
        """Return the links between the devices at these positions, as `ring` does for axes of a mesh."""
        nodes = Counter(device // self.fast_domain_size for device in devices)
        return self._ring(len(devices), max(nodes.values(), default=1), self.torus_axes)

    def _ring(self, count: int, in_node: int, torus_axes: int) -> Ring:
        """Return the links between `count` devices, of which `in_node` are in each node, along axes of the torus."""
        fast, slow = self.fast_link, self.slow_link
        nodes = math.ceil(count / in_node)
        bandwidth = fast.bandwidth * torus_axes
        if nodes > 1:
            bandwidth = min(bandwidth, in_node * self.slow_links * slow.bandwidth / self.oversubscription)
        between, hops = nodes - 1, max(1, count - 1)
        levels_between, levels_within = (nodes - 1).bit_length(), (in_node - 1).bit_length()
        return Ring(
            bandwidth * self.link_fraction,
            _mean((hops - between, fast.latency), (between, slow.latency)),
            _mean((levels_within, fast.latency), (levels_between, slow.latency)),
            slow.latency if nodes > 1 and in_node == 1 else None,
        )

    def collective_time(self, traffic: Traffic, mesh: AbstractMesh, axes: Sequence[str]) -> float:
        """Return the seconds of a collective along these axes."""
        return self.ring(mesh, axes).time(traffic)

    def product_time(self, batch: int, m: int, n: int, k: int, bytes_accessed: float, dtype: DType) -> float:
        """Return the seconds of `batch` products of m × k and k × n matrices, the gap included."""
        if not batch * m * n * k:  # no multiplications; at most a fill with zeros
            return self.memory_time(bytes_accessed)
        compute = min(self._waves_time(batch, m, n, k, split, dtype) for split in self._splits if split <= k)
        return max(compute, self._stream(bytes_accessed)) + self.kernel_gap

    def is_bound_by_memory(self, batch: int, m: int, n: int, k: int, bytes_accessed: float, dtype: DType) -> bool:
        """Return whether products, as in `product_time`, take longer to read and write than to compute at full rate."""
        return 2.0 * batch * m * n * k / self.product_rate(dtype) < self._stream(bytes_accessed)

    def attention_time(
        self, flops: float, keys: float, bytes_accessed: float, dtype: DType, is_gradient: bool = False
    ) -> float:
        """Return the seconds of fused attention or of its gradient, the gap included.

        Args:
            flops: the flops of its products.
            keys: the number of keys per query.
            bytes_accessed: the bytes of memory traffic.
            dtype: the dtype of the operands.
            is_gradient: whether it is the gradient.
        """
        fill = 1 + _ATTENTION_FILL / keys if self.cores > 1 and keys else 1.0
        rate = self.flops(dtype) * self.attention_fraction * (self.attention_grad_ratio if is_gradient else 1.0)
        return max(flops * fill / rate, self._stream(bytes_accessed)) + self.kernel_gap

    def memory_time(self, bytes_accessed: float) -> float:
        """Return the seconds of a kernel that is bound by its bytes of memory traffic, the gap included."""
        return self._stream(bytes_accessed) + self.kernel_gap

    def host_time(self, copied_bytes: float) -> float:
        """Return the seconds of a copy between the memories of the device and the host; 0 if they are one memory."""
        return copied_bytes / self.host_link if self.host_link else 0.0

    def _waves_time(self, batch: int, m: int, n: int, k: int, split: int, dtype: DType) -> float:
        """Return the seconds of the waves of a product whose k is split into `split` parts, which are added in f32."""
        core_rate = self.product_rate(dtype) / self.cores
        elements = min(
            math.ceil(split * batch * math.ceil(m / rows) * math.ceil(n / columns) / self.cores) * rows * columns
            for rows, columns in self._tiles
        )
        added = self._stream(2.0 * 4 * split * batch * m * n) if split > 1 else 0.0
        return 2.0 * elements * (k / split + self._fill) / core_rate + added

    @property
    def _splits(self) -> tuple[int, ...]:
        return _SPLITS if self.cores > 1 else (1,)

    @property
    def _tiles(self) -> tuple[tuple[int, int], ...]:
        return _TILES if self.cores > 1 else ((1, 1),)

    @property
    def _fill(self) -> int:
        return _FILL if self.cores > 1 else 0

    def _stream(self, bytes_accessed: float) -> float:
        return bytes_accessed / (self.memory_bandwidth * self.memory_fraction)

    def _devices_in_node(self, mesh: AbstractMesh, axes: Sequence[str]) -> int:
        """Return the number of devices of a ring along these axes that are in one node."""
        return math.prod(size for axis, size in self._sizes_in_node(mesh).items() if axis in axes)

    def _free_torus_dims(self, mesh: AbstractMesh, axes: Sequence[str]) -> int:
        """Return the dims of the torus that are left for a ring if each other axis of the mesh takes one."""
        others = sum(size > 1 and axis not in axes for axis, size in self._sizes_in_node(mesh).items())
        return max(1, self.torus_dims - others)

    def _sizes_in_node(self, mesh: AbstractMesh) -> dict[str, int]:
        """Return for each axis of a mesh the number of devices along it that are in one node."""
        stride, sizes = 1, {}
        for axis, size in reversed(list(mesh.shape.items())):
            sizes[axis] = max(1, min(size, self.fast_domain_size // stride))
            stride *= size
        return sizes


def _mean(*parts: tuple[int, float]) -> float:
    """Return the mean of values that occur some number of times; 0 if none occurs."""
    count = sum(times for times, _ in parts)
    return sum(times * value for times, value in parts) / count if count else 0.0


def _span(mesh: AbstractMesh, axes: Sequence[str]) -> int:
    """Return the smallest number of consecutive devices that contains a ring along these axes."""
    stride, span = 1, 1
    for axis, size in reversed(list(mesh.shape.items())):
        stride *= size
        if axis in axes and size > 1:
            span = stride
    return span
