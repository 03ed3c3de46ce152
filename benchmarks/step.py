"""A training step on eight devices: bytes sent, memory, flops and time."""

from functools import partial

from benchmarks import ours, peer
from benchmarks.counts import counts
from benchmarks.measure import Effort, interleaved
from benchmarks.programs import EXAMPLE, EXAMPLE_EVEN, LARGER, LARGER_EVEN, TWELVE_LAYERS, Sizes, on_mesh
from benchmarks.row import Case, Row


def cases(quick: bool) -> list[Case]:
    effort = Effort(rounds=1, seconds=0.02) if quick else Effort(rounds=15, seconds=0.2)
    steps = {
        "example": EXAMPLE,
        "example, even batch": EXAMPLE_EVEN,
        "larger": LARGER,
        "larger, even batch": LARGER_EVEN,
        "12 layers": TWELVE_LAYERS,
    }
    return [Case(f"{name} ({sizes})", partial(rows, name, sizes, effort)) for name, sizes in steps.items()]


def rows(name: str, sizes: Sizes, effort: Effort) -> list[Row]:
    (our_step, our_args), (peer_step, peer_args) = on_mesh(ours, sizes), on_mesh(peer, sizes)
    mine, theirs = counts(ours.compiled(our_step, our_args)), counts(peer.compiled(peer_step, peer_args))
    our_call, peer_call = ours.library.jit(our_step), peer.library.jit(peer_step)
    time = interleaved(lambda: ours.wait(our_call(*our_args)), lambda: peer.wait(peer_call(*peer_args)), effort)
    return [
        Row(f"{name}: wire bytes", "bytes", mine.wire.sent, theirs.wire.sent, 1.0),
        Row(f"{name}: collectives", "collectives", mine.wire.count, theirs.wire.count),
        Row(f"{name}: temp memory", "bytes", mine.temp_bytes, theirs.temp_bytes, 1.0),
        Row(f"{name}: argument memory", "bytes", mine.argument_bytes, theirs.argument_bytes),
        Row(f"{name}: flops", "flops", mine.flops, theirs.flops, 1.0),
        Row.timed(f"{name}: step time", time, 1.0),
    ]
