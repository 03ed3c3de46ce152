"""PipelinedScan: run the scan over the layers of an ordinary function as a pipeline over a mesh axis.

In the context `layer_scans`, each scan that is traced is offered to it. A scan over layers has independent rows, so
that they may be divided into microbatches. Its stages are scans over equally many layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from shardwise import lax, tree_util
from shardwise.api.layer_scans import layer_scans
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.parallel.pipeline import pipeline
from shardwise.parallel.row_independence import has_independent_rows


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
    def from_op(op: Scan, stacks: object) -> "LayerScan | None":
        """Return the description of a scan; None if its rows are not independent or it slices no arrays."""
        stacked_bytes = sum(leaf.type.nbytes for leaf in tree_util.tree_leaves(stacks))
        if not stacked_bytes or op.reverse or not has_independent_rows(op):
            return None
        return LayerScan(stacked_bytes, op.length, op.program.inputs[op.consts].type.shape[0])


@final
@dataclass(frozen=True, eq=False)
class LayerScanRecorder:
    """Lists the scans over layers that are traced, which run as usual."""

    found: list[LayerScan] = field(default_factory=list)

    def __call__(self, body: Callable[..., Any], op: Scan, first: object, stacks: object) -> None:
        if (scan := LayerScan.from_op(op, stacks)) is not None:
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

    def __call__(self, body: Callable[..., Any], op: Scan, first: Any, stacks: Any) -> Any:
        """Return the last carry of the scan; None if it is another one."""
        if LayerScan.from_op(op, stacks) != self.scan:
            return None
        stages = self.mesh.shape[self.axis]

        def stage(weights: Any, x: Any) -> Any:
            return lax.scan(body, x, weights)[0]

        def divide(leaf: Any) -> Any:
            return leaf.reshape(stages, leaf.shape[0] // stages, *leaf.shape[1:])

        with layer_scans(None):
            run = pipeline(stage, self.microbatches, self.axis, "gpipe", mesh=self.mesh, remat=False)
            return run(tree_util.tree_map(divide, stacks), first)
