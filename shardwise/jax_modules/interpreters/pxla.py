"""jax.interpreters.pxla: Orbax imports it, and uses it on Pathways alone, which is not supported."""

from shardwise.base.missing_names import report_missing

report_missing(__name__, [])
