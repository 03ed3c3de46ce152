"""Locations of MLIR as source lines of a program."""

import re

from shardwise.base._jaxlib import mlir_ir
from shardwise.compiler.ir.program import NOWHERE, Source

_TEXT = "-"  # the file name of locations that MLIR's parser adds to ops without one
_LINE = re.compile(r".+:\d+")
_MAX_DEPTH = 10_000  # of nested locations, such as the frames of a call stack


def source_of(location: object) -> Source:
    """Return the innermost source line of a location, with the named scopes that its op name states.

    JAX's op names, such as `jit(step)/encoder/jvp()/dot_general`, hold the names of scopes between those of
    transformations, and end with the primitive. Shardwise's also state the line before the op.
    """
    function, scope = "", None
    for _ in range(_MAX_DEPTH):
        if isinstance(location, mlir_ir.NameLoc):
            if scope is None:
                scope = _scope(location.name_str)
            else:
                function = location.name_str
            location = location.child_loc
        elif isinstance(location, mlir_ir.CallSiteLoc):
            scope = () if scope is None else scope
            location = location.callee
        elif isinstance(location, mlir_ir.FusedLoc) and location.locations:
            location = location.locations[0]
        elif isinstance(location, mlir_ir.FileLineColLoc):
            file = "<stablehlo>" if location.filename == _TEXT else location.filename
            return Source(file, location.start_line, function, scope or ())
        else:
            break
    return NOWHERE._replace(scope=scope or ())


def _scope(name: str) -> tuple[str, ...]:
    *parts, _ = name.split("/")
    return tuple(part for part in parts if part and "(" not in part and _LINE.fullmatch(part) is None)
