"""jax._src.mesh: the current mesh."""

from shardwise.base.missing_names import report_missing
from shardwise.compiler.shardings.mesh import Mesh, mesh_context

__all__ = ["get_concrete_mesh"]  # Haliax


def get_concrete_mesh() -> Mesh:
    """Return the current mesh, in traced functions too; an empty mesh if there is none."""
    return mesh_context.concrete


report_missing(__name__, __all__)
