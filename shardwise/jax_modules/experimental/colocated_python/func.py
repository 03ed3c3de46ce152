"""jax.experimental.colocated_python.func: Orbax looks for a private function, and does without it."""

from shardwise.jax_modules.missing import report_missing

report_missing(__name__, [])
