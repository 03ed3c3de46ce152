"""NamespaceMethods: the base class of arrays with methods that are functions of `shardwise.numpy`.

The class is empty here. `numpy/array_methods.py`, in a higher layer, defines the methods, and `shardwise/__init__.py`
attaches them. The stub next to this file declares them for type checkers.
"""

from shardwise.compiler.ir.types import Typed


class NamespaceMethods(Typed):
    """Methods that forward to `shardwise.numpy`. Subclasses have a `type`."""

    __slots__ = ()
