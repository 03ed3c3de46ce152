"""Which functions are being traced, as libraries ask for it."""

from typing import Any, final

from shardwise.compiler.ir.dispatch import open_frames


@final
class OpaqueTraceState:
    """The functions that are being traced at one moment. States are equal if these are the same.

    Flax compares the state in which a variable was created with that in which it is changed.
    """

    def __init__(self) -> None:
        self._frames = tuple(open_frames())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self._frames == other._frames

    def __hash__(self) -> int:
        return hash(self._frames)


def get_opaque_trace_state(convention: object = None) -> OpaqueTraceState:
    """Return the current trace state. `convention` is the library that asks, as in JAX."""
    return OpaqueTraceState()


def find_top_trace(_: object) -> Any:
    """Return the innermost function that is being traced, which tracers refer to as their `_trace`; None outside."""
    frames = open_frames()
    return frames[-1] if frames else None


def trace_state_clean() -> bool:
    """Return whether nothing is being traced."""
    return not open_frames()


def is_under_jit() -> bool:
    """Return whether a function that stages every op is being traced, as `jit` and loops do."""
    return any(frame.stages_all for frame in open_frames())
