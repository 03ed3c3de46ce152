"""EagerRegionFrame: a manual region outside any trace, in which Python control flow may read values."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.trace.tracer import Frame, Tracer
from shardwise.compiler.transforms.dce import dce
from shardwise.errors import ConcretizationTypeError


@final
class EagerRegionFrame(Frame):
    """A frame whose arguments are concrete arrays: it computes values that Python control flow needs.

    Such a value must be the same on all devices. It is computed by the equations that are staged so far.

    Args:
        region: the public function that was called, for messages.
        run: runs a program on the arguments and the captured values; its result has this rank.
    """

    def __init__(self, region: str, run: Callable[[Program, Sequence[Any], int], Any], name: str, **keywords: Any):
        super().__init__(name, **keywords)
        self._region = region
        self._run = run

    def concrete(
        self, tracer: Tracer, error: type[ConcretizationTypeError], use: str, advice: Callable[[], str]
    ) -> Any:
        if tracer.type.varying:
            axes = ", ".join(map(repr, tracer.type.varying))
            raise error(
                f"{use}, but this {tracer.type} varies along {axes}: each device of the {self._region} has its own "
                f"value.\n  It was created at {tracer.source}.\n  Make it the same on all devices, for example with "
                "`lax.psum` or `lax.pmax`; or use `lax.cond`, or `numpy.where`."
            )
        # Stack the values of all devices along a new dim 0.
        (row,) = self.bind(Reshape((1, *tracer.type.shape)), [tracer])
        if self.tracked:
            (row,) = self.bind(PVary(tuple(self.axes)), [row])
        values = np.asarray(self._run(dce(self.program([row.value])), self.captured, row.type.ndim))
        if any(value.tobytes() != values[0].tobytes() for value in values):
            raise error(
                f"{use}, but this {tracer.type} differs between the devices of the {self._region}.\n"
                f"  It was created at {tracer.source}.\n  Make it the same on all devices, for example with "
                "`lax.psum` or `lax.pmax`; or use `lax.cond`, or `numpy.where`."
            )
        return values[0]
