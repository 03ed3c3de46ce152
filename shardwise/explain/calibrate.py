"""calibrate: measure the specs of this machine's devices, for the cost model.

Each spec is measured by a program that depends on it alone: large products, streams through memory, chains of small
kernels, fused attention, all-reduces. No spec is fitted to a model that is predicted later. The peak rates of data
sheets are kept, and the reached fractions of them are measured. If the chip is not in the built-in table, the measured
rates are the peak rates. Several sizes are measured: the rates are from the largest size, and links are fitted to all
sizes.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import block_until_ready, device_put
from shardwise.api.transformations.differentiate import grad
from shardwise.base._jaxlib import jaxlib_version
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.chip_table import FIGURES, PLATFORMS
from shardwise.compiler.plan.hardware import CPU, built_in_chip_of, built_in_chips
from shardwise.compiler.traffic import all_reduce
from shardwise.explain.fit_links import TimedCollective, fit_links, has_data_sheet
from shardwise.nn.attention import dot_product_attention
from shardwise.runtime.client import default_backend, default_lowering_platform, local_devices
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

BF16: np.dtype[Any] = np.dtype(jnp.bfloat16)
F32: np.dtype[Any] = np.dtype(np.float32)
_SERIES = 3
_DTYPES = {"bf16": BF16, "f32": F32}


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes of the measured programs.

    Attributes:
        products: the sizes n of products of n × n matrices.
        streams: the numbers of f32 elements to read and write.
        kernel: the size n of the n × n matrices of a chain of small products.
        chain: the number of these products.
        attention: batch, length, heads and head dim of fused attention; None if the platform has no such kernel.
        collectives: the bytes per device of all-reduces.
        calls: the number of calls in a series, which are all launched before the first one is awaited.
    """

    products: tuple[int, ...]
    streams: tuple[int, ...]
    kernel: int
    chain: int
    attention: tuple[int, int, int, int] | None
    collectives: tuple[int, ...]
    calls: int

    @staticmethod
    def of_platform(platform: str) -> "Sizes":
        """Return the sizes for the devices of a platform, by PJRT's name."""
        if platform == "cpu":
            return Sizes((256, 512, 1024), (1 << 20, 1 << 22, 1 << 24), 16, 64, None, (1 << 10, 1 << 16, 1 << 22), 5)
        attention = (8, 2048, 16, 128) if platform == "cuda" else None  # by cuDNN
        collectives = tuple(1 << power for power in (12, 16, 20, 24, 28))
        return Sizes((2048, 4096, 8192), (1 << 24, 1 << 26, 1 << 28), 256, 64, attention, collectives, 20)


@final
@dataclass(frozen=True)
class Measurement:
    """One measured program.

    Attributes:
        kind: the measured spec: "product bf16", "product f32", "stream", "kernels", "attention" or "all_reduce".
        size: the size, as in `Sizes`.
        seconds: the time of one call.
    """

    kind: str
    size: int
    seconds: float

    def __str__(self) -> str:
        rates = {
            "product": lambda: f"{2 * self.size**3 / self.seconds / 1e12:.4g} Tflop/s",
            "stream": lambda: f"{8 * self.size / self.seconds / 1e9:.4g} GB/s",
            "all_reduce": lambda: f"{self.size / self.seconds / 1e9:.4g} GB/s",
        }
        rate = rates.get(self.kind.split()[0])
        return f"{self.kind} {self.size}: {self.seconds * 1e6:.6g} µs{f', {rate()}' if rate else ''}"


@final
@dataclass(frozen=True)
class Calibration:
    """The result of `calibrate`.

    Attributes:
        chip: the chip with the measured specs.
        device_kind: the kind of the measured devices.
        measurements: all measurements.
    """

    chip: Chip
    device_kind: str
    measurements: tuple[Measurement, ...] = field(repr=False)

    @property
    def comment(self) -> str:
        """The comment above its entry in a table of chips."""
        return f"Measured by `shardwise calibrate` on {self.device_kind}, jaxlib {jaxlib_version()}."


def calibrate(
    name: str = "", sizes: Sizes | None = None, report: Callable[[str], None] = lambda line: None
) -> Calibration:
    """Measure the local devices of this process.

    Args:
        name: the name of the chip; by default, the name of the built-in chip or of the device kind, with "-measured".
        sizes: the sizes to measure; by default, sizes for the platform.
        report: called with a line for each measurement.
    """
    devices = local_devices()
    device_kind = str(devices[0].device_kind)
    sizes = sizes or Sizes.of_platform(default_lowering_platform())
    base = _base(devices[0])
    measurements: list[Measurement] = []
    programs = list(_programs(sizes, len(devices)))
    for index, (kind, size, make) in enumerate(programs, 1):
        function, args = make()
        measurements.append(Measurement(kind, size, _seconds_per_call(function, args, sizes.calls)))
        report(f"[{index}/{len(programs)}] {measurements[-1]}")
    chip = fit_chip(base, measurements, sizes, len(devices))
    name = name or f"{base.name if base.name in built_in_chips() else _slug(device_kind)}-measured"
    return Calibration(replace(chip, name=name.lower()), device_kind, tuple(measurements))


def fit_chip(base: Chip, measurements: Sequence[Measurement], sizes: Sizes, devices: int) -> Chip:
    """Return the chip with the measured specs.

    Args:
        base: the chip whose other specs are kept.
        measurements: the measured times.
        sizes: the measured sizes.
        devices: the number of devices of all-reduces.
    """
    times: dict[str, dict[int, float]] = {}
    for measurement in measurements:
        times.setdefault(measurement.kind, {})[measurement.size] = measurement.seconds
    chip = _fit_memory(_without_losses(base), times["stream"])
    chip = _fit_products(chip, times)
    chip = _fit_gap(chip, times["kernels"], sizes)
    if sizes.attention is not None:
        chip = _fit_attention(chip, times["attention"], sizes.attention)
    if devices > 1:
        chip = _fit_links(chip, times["all_reduce"], devices)
    kinds = {
        "attention_fraction": sizes.attention is not None,
        "attention_grad_ratio": False,  # forward and backward are timed together
        "link_fraction": devices > 1,
        "f8_product_fraction": False,  # no program measures it
        "interference": False,
    }
    measured = [figure for figure in FIGURES if kinds.get(figure, True)]
    return replace(chip, sources=tuple({**dict(base.sources), **dict.fromkeys(measured, "measured")}.items()))


def _base(device: Any) -> Chip:
    """Return the built-in chip of a device, or a chip whose peak rates will be the measured rates."""
    known = built_in_chip_of(str(device.device_kind))
    if known is not None:
        return known
    # Functions for a platform without a tracing mode of its own are traced with portable ops, as for the CPU.
    platform = default_backend() if default_backend() in PLATFORMS else CPU.platform
    memory = (device.memory_stats() or {}).get("bytes_limit", CPU.memory)
    kinds, cores = (str(device.device_kind),), int(getattr(device, "core_count", 1))
    return replace(CPU, name="", device_kinds=kinds, memory=memory, cores=cores, overlaps=True, platform=platform)


def _without_losses(chip: Chip) -> Chip:
    return replace(chip, product_fraction=1.0, memory_fraction=1.0, attention_fraction=1.0, kernel_gap=0.0)


def _fit_memory(chip: Chip, times: dict[int, float]) -> Chip:
    size = max(times)
    share = chip.memory_time(8.0 * size) / times[size]
    if has_data_sheet(chip) and share <= 1:
        return replace(chip, memory_fraction=share)
    return replace(chip, memory_bandwidth=chip.memory_bandwidth * share)


def _fit_products(chip: Chip, times: dict[str, dict[int, float]]) -> Chip:
    """Set the fraction of the peak that the largest product reaches in bf16, and the peak in f32.

    The chip has only one fraction, so the peak in f32 is set such that the same fraction of it is reached.
    """
    shares = {}
    for name, dtype in _DTYPES.items():
        n = max(times[f"product {name}"])
        shares[name] = 2 * n**3 / times[f"product {name}"][n] / chip.flops(dtype)
    if has_data_sheet(chip) and shares["bf16"] <= 1:
        f32_flops = chip.f32_flops * shares["f32"] / shares["bf16"]
        return replace(chip, product_fraction=shares["bf16"], f32_flops=f32_flops)
    return replace(chip, bf16_flops=chip.bf16_flops * shares["bf16"], f32_flops=chip.f32_flops * shares["f32"])


def _fit_gap(chip: Chip, times: dict[int, float], sizes: Sizes) -> Chip:
    """Fit the overhead of a small kernel: its time without its work."""
    n, seconds = sizes.kernel, times[sizes.kernel]
    work = chip.product_time(1, n, n, n, 3.0 * BF16.itemsize * n * n, BF16)
    return replace(chip, kernel_gap=max(0.0, seconds / sizes.chain - work))


def _fit_attention(chip: Chip, times: dict[int, float], sizes: tuple[int, int, int, int]) -> Chip:
    batch, length, heads, width = sizes
    product = 2 * batch * heads * length**2 * width / 2  # on half the scores
    ideal = replace(chip, kernel_gap=0.0)
    seconds = ideal.attention_time(2 * product, length / 2, 0.0, BF16)
    seconds += ideal.attention_time(5 * product, length / 2, 0.0, BF16, is_gradient=True)
    return replace(chip, attention_fraction=min(1.0, seconds / times[length]))


def _fit_links(chip: Chip, times: dict[int, float], devices: int) -> Chip:
    """Fit bandwidth and latency of the fast links to the times of all-reduces."""
    group = tuple(range(devices))
    timed = [TimedCollective(group, all_reduce(size, devices), seconds) for size, seconds in times.items()]
    one_node = replace(chip, fast_domain_size=max(chip.fast_domain_size, devices))
    return replace(fit_links(one_node, timed), fast_domain_size=chip.fast_domain_size)


Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _programs(sizes: Sizes, devices: int) -> Iterator[tuple[str, int, Callable[[], Program]]]:
    """Yield the kind, the size and a function that returns a program with its arguments, for each measurement."""
    for name, dtype in _DTYPES.items():
        for n in sizes.products:
            yield f"product {name}", n, partial(_product, n, dtype)
    for count in sizes.streams:
        yield "stream", count, partial(_stream, count)
    yield "kernels", sizes.kernel, partial(_chain, sizes.kernel, sizes.chain)
    if sizes.attention is not None:
        yield "attention", sizes.attention[1], partial(_attention, *sizes.attention)
    if devices > 1:
        for nbytes in sizes.collectives:
            yield "all_reduce", nbytes, partial(_all_reduce, nbytes)


def _product(n: int, dtype: np.dtype[Any]) -> Program:
    return jit(jnp.matmul), (random_array((n, n), dtype), random_array((n, n), dtype))


def _stream(count: int) -> Program:
    return jit(lambda x: x + 1), (random_array((count,), F32),)


def _chain(n: int, count: int) -> Program:
    def chain(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = x @ w
        return x

    return jit(chain), (random_array((n, n), BF16), random_array((n, n), BF16))


def _attention(batch: int, length: int, heads: int, width: int) -> Program:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").astype(F32))

    q = random_array((batch, length, heads, width), BF16)
    return jit(grad(loss, (0, 1, 2))), (q, q, q)


def _all_reduce(nbytes: int) -> Program:
    devices = local_devices()
    mesh = Mesh(np.array(devices, object), "devices")
    columns = max(1, nbytes // F32.itemsize)
    rows = device_put(np.zeros((len(devices), columns), F32), NamedSharding(mesh, P("devices")))
    return jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P())), (rows,)


def random_array(shape: tuple[int, ...], dtype: Any, scale: float = 0.02) -> Any:
    """Return random numbers, generated on the device, because the power of a product depends on its operands."""
    key = random.key(math.prod(shape) % 2**31)
    return jit(lambda: (random.normal(key, shape, F32) * scale).astype(dtype))()


def _seconds_per_call(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Return the seconds of one call, the minimum over several series of calls."""
    block_until_ready(function(*args))  # compiles
    times = []
    for _ in range(_SERIES):
        start = time.perf_counter()
        for _ in range(calls):
            result = function(*args)
        block_until_ready(result)
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def _slug(device_kind: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-")
