"""PipelinedScan: run the scan over the layers of an ordinary function as a pipeline over a mesh axis.

In the context `layer_scans`, each scan that is traced is offered to the context's value. A scan over layers has
independent rows, so that they may be divided into microbatches. Its stages are scans over equally many layers.

A LayerScanRecorder checks the scans of a function once, for which it traces each body again. A PipelinedScan finds the
same scans by their positions among the scans that are offered: a function offers them in the same order in each trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from shardwise import lax, tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.layer_scans import layer_scans
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.trace.tracer import Tracer
from shardwise.parallel.pipeline import pipeline
from shardwise.parallel.row_independence import computes_same_rows, has_independent_rows


@final
@dataclass(frozen=True, order=True)
class LayerScan:
    """The size of a scan over layers.

    Attributes:
        stacked_bytes: the bytes of the arrays that it slices: the weights of all layers.
        layers: the number of layers.
        rows: the number of rows of its carry.
    """

    stacked_bytes: int
    layers: int
    rows: int

    @staticmethod
    def from_op(op: Scan, stacks: object) -> "LayerScan | None":
        """Return the size of a scan; None if it slices no arrays, or carries none with rows."""
        stacked_bytes = sum(leaf.type.nbytes for leaf in tree_util.tree_leaves(stacks))
        carry = op.program.inputs[op.consts].type if op.carried else None
        if not stacked_bytes or carry is None or not carry.ndim:
            return None
        return LayerScan(stacked_bytes, op.length, carry.shape[0])


def _may_be_pipelined(
    body: Callable[..., Any], op: Scan, captured: Sequence[object], first: object, stacks: object
) -> bool:
    """Return whether the rows of a scan are independent, so that they may be divided into microbatches.

    They are dependent if the body reads their number: it is traced again for each microbatch.
    """
    if op.reverse or not has_independent_rows(op):
        return False
    more = _over_more_rows(body, op, first, stacks)
    return more is not None and computes_same_rows(op, more.op) and _are_equal(captured, more.captured)


@final
class _Traced(NamedTuple):
    """A scan that was traced: its op, and the values that its body captures."""

    op: Scan
    captured: Sequence[object]


def _over_more_rows(body: Callable[..., Any], op: Scan, first: object, stacks: object) -> _Traced | None:
    """Return the scan over twice the rows; None if the body accepts no other number of rows.

    Fewer rows may be one, for which the same function needs fewer broadcasts.
    """
    carry = [value.type for value in op.program.inputs[op.consts : op.consts + op.carried]]
    more = [ShapeDtypeStruct((2 * type.shape[0], *type.shape[1:]), type.dtype) for type in carry]
    slices = [ShapeDtypeStruct(leaf.type.shape, leaf.type.dtype) for leaf in tree_util.tree_leaves(stacks)]
    offered: list[_Traced] = []  # those inside the body precede the scan itself
    with layer_scans(lambda body, op, captured, first, stacks: offered.append(_Traced(op, captured))):
        try:
            eval_shape(
                lambda x, weights: lax.scan(body, x, weights)[0],
                tree_util.tree_unflatten(tree_util.tree_structure(first), more),
                tree_util.tree_unflatten(tree_util.tree_structure(stacks), slices),
            )
        except Exception:  # of any kind: the body is a function of the user's
            return None
    return offered[-1]


def _are_equal(captured: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether two traces of a body capture the same traced values, and arrays with equal elements."""
    return len(captured) == len(others) and all(
        one is other
        or (
            not isinstance(one, Tracer)
            and not isinstance(other, Tracer)
            and np.array_equal(np.asarray(one), np.asarray(other))
        )
        for one, other in zip(captured, others, strict=True)
    )


@final
@dataclass(eq=False)
class LayerScanRecorder:
    """Lists the scans over layers of one trace of a function. They run as usual.

    Attributes:
        found: for each size of these scans, their positions among the scans that the function offers.
        offered: the number of scans so far.
    """

    found: dict[LayerScan, list[int]] = field(default_factory=dict)
    offered: int = 0

    def __call__(
        self, body: Callable[..., Any], op: Scan, captured: Sequence[object], first: object, stacks: object
    ) -> None:
        position, self.offered = self.offered, self.offered + 1
        scan = LayerScan.from_op(op, stacks)
        if scan is not None and _may_be_pipelined(body, op, captured, first, stacks):
            self.found.setdefault(scan, []).append(position)


@final
@dataclass(frozen=True)
class PipelinedScan:
    """A scan over layers as a GPipe pipeline, whose backward pass stores the residuals of the scan.

    Attributes:
        scan: the size of the scan.
        positions: the positions of the scans of this size that are pipelines. All others run as usual.
        mesh: the mesh.
        axis: the axis of the mesh along which the stages are; its size divides the layers.
        microbatches: the number of microbatches; it divides the rows.
    """

    scan: LayerScan
    positions: Sequence[int]
    mesh: Mesh | AbstractMesh
    axis: str
    microbatches: int

    def applied(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose scans over layers are pipelines."""

        def call(*args: Any) -> Any:
            with layer_scans(_OfferedScans(self)):  # a new value in each trace, which offers all scans again
                return function(*args)

        return call

    def run(self, body: Callable[..., Any], first: Any, stacks: Any) -> Any:
        """Return the last carry."""
        stages = self.mesh.shape[self.axis]

        def stage(weights: Any, x: Any) -> Any:
            return lax.scan(body, x, weights)[0]

        def divide(leaf: Any) -> Any:
            return leaf.reshape(stages, leaf.shape[0] // stages, *leaf.shape[1:])

        with layer_scans(None):
            run = pipeline(stage, self.microbatches, self.axis, "gpipe", mesh=self.mesh, remat=False)
            return run(tree_util.tree_map(divide, stacks), first)


@final
@dataclass(eq=False)
class _OfferedScans:
    """Counts the scans that one trace of a function offers, and runs those of a PipelinedScan as pipelines."""

    pipelined: PipelinedScan
    offered: int = 0

    def __call__(
        self, body: Callable[..., Any], op: Scan, captured: Sequence[object], first: object, stacks: object
    ) -> Any:
        """Return the last carry of the scan; None if it is another one."""
        position, self.offered = self.offered, self.offered + 1
        if position not in self.pipelined.positions or LayerScan.from_op(op, stacks) != self.pipelined.scan:
            return None
        return self.pipelined.run(body, first, stacks)
