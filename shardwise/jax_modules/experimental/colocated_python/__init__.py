"""jax.experimental.colocated_python, with the private modules `func` and `serialization` that Orbax imports."""

from shardwise.base.missing_names import report_missing
from shardwise.experimental.colocated_python import (
    colocated_cpu_devices,
    colocated_python,
    colocated_python_class,
)
from shardwise.jax_modules.experimental.colocated_python import func, serialization

__all__ = ["colocated_cpu_devices", "colocated_python", "colocated_python_class", "func", "serialization"]  # Orbax

report_missing(__name__, __all__)
