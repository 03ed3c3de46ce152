"""NamespaceMethods: the base class of arrays that has the methods that functions of `shardwise.numpy` implement.

The class is empty here: `numpy/array_methods.py`, in a layer above this one, defines the methods, and
`shardwise/__init__.py` attaches them. The stub beside this file tells type checkers about them.
"""

from shardwise.compiler.ir.types import Typed


class NamespaceMethods(Typed):
    """Methods that forward to `shardwise.numpy`. Subclasses have a `type`."""

    __slots__ = ()
