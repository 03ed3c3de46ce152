"""jax.interpreters.pxla: the mesh of a thread. Orbax uses the module on Pathways alone, which is not supported."""

from typing import final

from shardwise.base.missing_names import report_missing
from shardwise.compiler.shardings.mesh import Mesh, mesh_context

__all__ = ["thread_resources"]  # Haliax


@final
class _Environment:
    """The mesh of `with mesh:`, which is the current mesh here."""

    @property
    def physical_mesh(self) -> Mesh:
        return mesh_context.concrete


@final
class _ThreadResources:
    """The mesh of this thread."""

    env = _Environment()


thread_resources = _ThreadResources()

report_missing(__name__, __all__)
