"""Trace: an interpreter that users and libraries write as in JAX, by a class of tracers and what happens to primitives.

    with take_current_trace() as outer:  # the frames that are open
        trace = MyTrace(outer)
        with set_current_trace(trace):
            ...

Every op in the inner block goes to `trace.process_primitive(primitive, operands, params)`, which may compute its
results by `primitive.bind_with_trace(outer, values, types, params)`.

A Trace is a frame: ops go to it as to the frames of `jit` and `grad`. It sees them in the form of a jaxpr's equations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from shardwise.api.jaxprs.jaxpr import eval_jaxpr
from shardwise.api.jaxprs.jaxpr_forms import closed_jaxpr, equation_form
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.compiler.control.custom_derivatives import CustomJvp, CustomVjp
from shardwise.compiler.ir.dispatch import open_frames, use_frames
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.trace.tracer import Frame


class Trace(Frame):
    """Base class of interpreters of primitives; `set_current_trace` makes one current.

    A subclass defines `process_primitive(primitive, tracers, params)`, which returns a result, or a sequence of them
    if `primitive.multiple_results`. Its tracers derive from `jax.core.Tracer`, whose constructor accepts the trace
    and a type; a constructor may instead set `_trace`, if the class has a property `aval`. A function with a custom
    derivative arrives as the primitives that it applies.

    Example:
        >>> class CountingTrace(jax.core.Trace):
        ...     def __init__(self, outer):
        ...         super().__init__()
        ...         self.outer, self.names = outer, []
        ...     def process_primitive(self, primitive, tracers, params):
        ...         self.names.append(primitive.name)
        ...         types = [jax.typeof(x) for x in tracers]
        ...         return primitive.bind_with_trace(self.outer, tracers, types, params)
        >>> with jax.extend.core.take_current_trace() as outer:
        ...     trace = CountingTrace(outer)
        ...     with jax.extend.core.set_current_trace(trace):
        ...         y = jax.lax.exp(jnp.float32(0)) * 2
        >>> trace.names
        ['exp', 'mul']
    """

    def __init__(self) -> None:
        super().__init__(type(self).__name__, stages_all=True)

    @property
    def frames(self) -> list[Any]:
        """The open frames, and this one as the innermost."""
        return [*open_frames(), self]

    def process_primitive(self, primitive: Primitive, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        """Return the results of a primitive, applied to tracers and arrays. Subclasses define it."""
        raise NotImplementedError(f"{self.name} must define process_primitive, which {primitive} needs")

    def full_raise(self, x: object) -> object:
        """Return a value of another trace as it is: `process_primitive` receives it as an operand."""
        return x

    def bind(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
        """Process an op as a primitive."""
        if isinstance(op, Full):  # a constant, which is an operand in the form of a jaxpr
            with use_frames(open_frames()[: open_frames().index(self)]):
                return (op(),)
        if isinstance(op, (CustomJvp, CustomVjp)):
            closed = closed_jaxpr(op.program)
            return tuple(eval_jaxpr(closed.jaxpr, closed.consts, *args))
        primitive, params, order = equation_form(op)
        operands = args if order is None else [args[number] for number in order]
        processed = self.process_primitive(primitive, operands, params)
        results = tuple(processed) if primitive.multiple_results else (processed,)
        self.note_tracers([x for x in results if self.owns(x)])
        return results


@final
class OpenFrames:
    """The frames that are open at one moment, as a trace to which primitives can be applied."""

    def __init__(self) -> None:
        self.frames = list(open_frames())

    def stage_value(self, value: object) -> Any:
        """Return the value: frames capture outer values when they use them."""
        return value


@contextmanager
def take_current_trace() -> Iterator[OpenFrames]:
    """Return the frames that are open, in a `with` block."""
    yield OpenFrames()


@contextmanager
def set_current_trace(trace: Trace | OpenFrames, check_leaks: bool = False) -> Iterator[None]:
    """Send ops to a trace in a `with` block.

    `check_leaks`: whether tracers that outlive the block are an error while the setting `check_tracer_leaks` is on.
    """
    with use_frames(trace.frames):
        yield
    if check_leaks and isinstance(trace, Trace):
        trace.check_leaks()


@final
class TraceTag:
    """An object that tells the tracers of one use of a trace from others."""
