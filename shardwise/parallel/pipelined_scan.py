"""PipelinedScan: run the scan over the layers of an ordinary function as a pipeline over a mesh axis.

In the context `layer_scans`, each scan that is traced is offered to it. A scan over layers has independent rows, so
that they may be divided into microbatches. Its stages are scans over equally many layers.
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
    """A scan over layers.

    Attributes:
        stacked_bytes: the bytes of the arrays that it slices: the weights of all layers.
        layers: the number of layers.
        rows: the number of rows of its carry.
    """

    stacked_bytes: int
    layers: int
    rows: int

    @staticmethod
    def from_op(
        body: Callable[..., Any], op: Scan, captured: Sequence[object], first: object, stacks: object
    ) -> "LayerScan | None":
        """Return the description of a scan; None if its rows are not independent or it slices no arrays.

        The rows are also dependent if the body reads their number: it is traced again for each microbatch.
        """
        stacked_bytes = sum(leaf.type.nbytes for leaf in tree_util.tree_leaves(stacks))
        if not stacked_bytes or op.reverse or not has_independent_rows(op):
            return None
        more = _over_more_rows(body, op, first, stacks)
        if more is None or not computes_same_rows(op, more.op) or not _are_equal(captured, more.captured):
            return None
        return LayerScan(stacked_bytes, op.length, op.program.inputs[op.consts].type.shape[0])


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
@dataclass(frozen=True, eq=False)
class LayerScanRecorder:
    """Lists the scans over layers that are traced, which run as usual."""

    found: list[LayerScan] = field(default_factory=list)

    def __call__(
        self, body: Callable[..., Any], op: Scan, captured: Sequence[object], first: object, stacks: object
    ) -> None:
        if (scan := LayerScan.from_op(body, op, captured, first, stacks)) is not None:
            self.found.append(scan)


@final
@dataclass(frozen=True)
class PipelinedScan:
    """Runs a scan over layers as a GPipe pipeline, whose backward pass stores the residuals of the scan.

    Attributes:
        scan: the scan. Others run as usual.
        mesh: the mesh.
        axis: the axis of the mesh along which the stages are; its size divides the layers.
        microbatches: the number of microbatches; it divides the rows.
    """

    scan: LayerScan
    mesh: Mesh | AbstractMesh
    axis: str
    microbatches: int

    def __call__(self, body: Callable[..., Any], op: Scan, captured: Sequence[object], first: Any, stacks: Any) -> Any:
        """Return the last carry of the scan; None if it is another one."""
        if LayerScan.from_op(body, op, captured, first, stacks) != self.scan:
            return None
        stages = self.mesh.shape[self.axis]

        def stage(weights: Any, x: Any) -> Any:
            return lax.scan(body, x, weights)[0]

        def divide(leaf: Any) -> Any:
            return leaf.reshape(stages, leaf.shape[0] // stages, *leaf.shape[1:])

        with layer_scans(None):
            run = pipeline(stage, self.microbatches, self.axis, "gpipe", mesh=self.mesh, remat=False)
            return run(tree_util.tree_map(divide, stacks), first)
