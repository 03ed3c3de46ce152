"""Programs with shard_map on eight devices, compared with JAX: results and gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from benchmarks import ours, peer, regions
from benchmarks.counts import counts
from benchmarks.measure import Effort, interleaved
from benchmarks.programs import Side
from benchmarks.row import Case, Row

AXIS = "x"
MESH = ((8,), (AXIS,))
ROWS, COLUMNS, REPLICATED = (AXIS,), (None, AXIS), ()

Spec = tuple[Any, ...]


@final
@dataclass(frozen=True)
class Region:
    """The body of a shard_map, its specs, and the shapes of its arguments.

    `small`: shapes for which the time of a call is that of the host.
    """

    name: str
    body: Callable[[Any], regions.Body]
    in_specs: Sequence[Spec]
    out_spec: Spec
    shapes: Sequence[tuple[int, ...]]
    small: Sequence[tuple[int, ...]]

    def on(self, side: Side, small: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a function of the result and all gradients, and its sharded arguments."""
        library, mesh = side.library, side.mesh(*MESH)
        spec = library.sharding.PartitionSpec
        region = library.shard_map(
            self.body(library),
            mesh=mesh,
            in_specs=tuple(spec(*entries) for entries in self.in_specs),
            out_specs=spec(*self.out_spec),
        )

        def value_and_gradients(*args: Any) -> Any:
            result, pull = library.vjp(region, *args)
            return result, pull(result)

        rng = np.random.default_rng(0)
        shapes = self.small if small else self.shapes
        arrays = [(rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32) for shape in shapes]
        return value_and_gradients, tuple(
            side.put(x, mesh, spec) for x, spec in zip(arrays, self.in_specs, strict=True)
        )


REGIONS = (
    Region(
        "MLP with psum",
        lambda library: regions.megatron_mlp(library, AXIS),
        (REPLICATED, COLUMNS, ROWS),
        REPLICATED,
        ((256, 256), (256, 2048), (2048, 256)),
        ((4, 4), (4, 8), (8, 4)),
    ),
    Region(
        "FSDP with all_gather",
        lambda library: regions.fsdp_layers(library, AXIS),
        (ROWS, COLUMNS),
        ROWS,
        ((256, 256), (4, 256, 256)),
        ((8, 8), (4, 8, 8)),
    ),
    Region(
        "ring attention",
        lambda library: regions.attention(library, AXIS),
        (COLUMNS, COLUMNS, COLUMNS),
        COLUMNS,
        ((2, 512, 4, 32),) * 3,
        ((1, 8, 1, 4),) * 3,
    ),
    Region(
        "experts with all_to_all",
        lambda library: regions.experts(library, AXIS),
        (ROWS, REPLICATED, ROWS, ROWS),
        ROWS,
        ((512, 64), (64, 16), (16, 64, 128), (16, 128, 64)),
        ((8, 4), (4, 8), (8, 4, 4), (8, 4, 4)),
    ),
    Region(
        "pipeline with ppermute",
        lambda library: regions.pipeline(library, AXIS),
        (ROWS, REPLICATED),
        REPLICATED,
        ((8, 128, 128), (16, 32, 128)),
        ((8, 4, 4), (2, 2, 4)),
    ),
    Region(
        "stencil with ppermute",
        lambda library: regions.stencil(library, AXIS, 16),
        (ROWS,),
        ROWS,
        ((2048, 256),),
        ((8, 4),),
    ),
)


def cases(quick: bool) -> list[Case]:
    compiling, running = (Effort(1, 0.0), Effort(1, 0.0)) if quick else (Effort(5, 0.0), Effort(15, 0.1))
    return [Case(region.name, partial(rows, region, compiling, running)) for region in REGIONS]


def rows(region: Region, compiling: Effort, running: Effort) -> list[Row]:
    (our_function, our_args), (peer_function, peer_args) = region.on(ours), region.on(peer)
    our_compile = partial(ours.compiled, our_function, our_args)
    peer_compile = partial(peer.compiled, peer_function, peer_args)
    our_counts, peer_counts = counts(our_compile()), counts(peer_compile())
    compile_time = interleaved(our_compile, peer_compile, compiling)
    our_step = partial(ours.library.jit(our_function), *our_args)
    peer_step = partial(peer.library.jit(peer_function), *peer_args)
    step_time = interleaved(lambda: ours.wait(our_step()), lambda: peer.wait(peer_step()), running)
    (our_function, our_args), (peer_function, peer_args) = region.on(ours, small=True), region.on(peer, small=True)
    our_call = partial(ours.library.jit(our_function), *our_args)
    peer_call = partial(peer.library.jit(peer_function), *peer_args)
    call_time = interleaved(our_call, peer_call, running, after=_wait)
    return [
        Row(f"{region.name}: wire bytes", "bytes", our_counts.wire.sent, peer_counts.wire.sent, 1.0),
        Row(f"{region.name}: collectives", "collectives", our_counts.wire.count, peer_counts.wire.count),
        Row(f"{region.name}: temp memory", "bytes", our_counts.temp_bytes, peer_counts.temp_bytes, 1.0),
        Row(f"{region.name}: flops", "flops", our_counts.flops, peer_counts.flops, 1.0),
        Row.timed(f"{region.name}: compile time", compile_time, 1.0),
        Row.timed(f"{region.name}: step time", step_time, 1.0),
        Row.timed(f"{region.name}: call time", call_time, 1.0),
    ]


def _wait(tree: Any) -> None:
    """Wait for the arrays of either library."""
    for array in ours.library.tree.leaves(tree):
        array.block_until_ready()
