"""jax.extend.ifrt_programs: programs for plugins of Pathways, which are not supported. Orbax imports it."""

import sys

from shardwise.base.missing_names import report_missing

__all__ = ["ifrt_programs"]  # Orbax

ifrt_programs = sys.modules[__name__]  # it provides no functions: using one is an error that names it

report_missing(__name__, __all__)
