"""Programs with manual regions (shard_map) on eight devices, beside JAX's: results and gradients of each."""

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
LINE = ((8,), (AXIS,))
ROWS, COLUMNS, WHOLE = (AXIS,), (None, AXIS), ()

Spec = tuple[Any, ...]


@final
@dataclass(frozen=True)
class Region:
    """What each device does with its pieces, how arguments and results are cut, and the arguments' shapes; `small`: so
    that the time of a call is the host's, and no device is busy meanwhile."""

    name: str
    body: Callable[[Any], regions.Body]
    in_specs: Sequence[Spec]
    out_spec: Spec
    shapes: Sequence[tuple[int, ...]]
    small: Sequence[tuple[int, ...]]

    def on(self, side: Side, small: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A function that gives the result and the gradients for all arguments, and the arguments, in place."""
        library, mesh = side.library, side.mesh(*LINE)
        spec = library.sharding.PartitionSpec
        region = library.shard_map(
            self.body(library),
            mesh=mesh,
            in_specs=tuple(spec(*entries) for entries in self.in_specs),
            out_specs=spec(*self.out_spec),
        )

        def both(*args: Any) -> Any:
            result, pull = library.vjp(region, *args)
            return result, pull(result)

        rng = np.random.default_rng(0)
        shapes = self.small if small else self.shapes
        arrays = [(rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32) for shape in shapes]
        return both, tuple(side.put(x, mesh, spec) for x, spec in zip(arrays, self.in_specs, strict=True))


REGIONS = (
    Region(
        "MLP by psum",
        lambda library: regions.summed(library, AXIS),
        (WHOLE, COLUMNS, ROWS),
        WHOLE,
        ((256, 256), (256, 2048), (2048, 256)),
        ((4, 4), (4, 8), (8, 4)),
    ),
    Region(
        "layers by all_gather",
        lambda library: regions.gathered(library, AXIS),
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
        "experts by all_to_all",
        lambda library: regions.experts(library, AXIS),
        (ROWS, WHOLE, ROWS, ROWS),
        ROWS,
        ((512, 64), (64, 16), (16, 64, 128), (16, 128, 64)),
        ((8, 4), (4, 8), (8, 4, 4), (8, 4, 4)),
    ),
    Region(
        "pipeline by ppermute",
        lambda library: regions.pipeline(library, AXIS),
        (ROWS, WHOLE),
        WHOLE,
        ((8, 128, 128), (16, 32, 128)),
        ((8, 4, 4), (2, 2, 4)),
    ),
    Region(
        "stencil by ppermute",
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
    mine, theirs = counts(our_compile()), counts(peer_compile())
    compile_time = interleaved(our_compile, peer_compile, compiling)
    our_step = partial(ours.library.jit(our_function), *our_args)
    peer_step = partial(peer.library.jit(peer_function), *peer_args)
    step_time = interleaved(lambda: ours.wait(our_step()), lambda: peer.wait(peer_step()), running)
    (our_function, our_args), (peer_function, peer_args) = region.on(ours, small=True), region.on(peer, small=True)
    our_call = partial(ours.library.jit(our_function), *our_args)
    peer_call = partial(peer.library.jit(peer_function), *peer_args)
    call_time = interleaved(our_call, peer_call, running, after=_awaited)
    return [
        Row(f"{region.name}: wire bytes", "bytes", mine.wire.sent, theirs.wire.sent, 1.0),
        Row(f"{region.name}: collectives", "collectives", mine.wire.count, theirs.wire.count),
        Row(f"{region.name}: temp memory", "bytes", mine.temp_bytes, theirs.temp_bytes, 1.0),
        Row(f"{region.name}: flops", "flops", mine.flops, theirs.flops, 1.0),
        Row.timed(f"{region.name}: compile time", compile_time, 1.0),
        Row.timed(f"{region.name}: step time", step_time, 1.0),
        Row.timed(f"{region.name}: call time", call_time, 1.0),
    ]


def _awaited(tree: Any) -> None:
    """Of either library: both have a method for it."""
    for array in ours.library.tree.leaves(tree):
        array.block_until_ready()
