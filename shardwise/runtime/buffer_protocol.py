"""export_buffers: `memoryview(x)` of a class with a method `__buffer__`, on Python 3.11 too.

Python 3.12 and later call `__buffer__`. Python 3.11 has only the C slot behind it, which a class written in Python
cannot define; it is set by ctypes. No exception propagates from there: if `__buffer__` raises, the error is logged, and
Python raises a SystemError.
"""

import ctypes
import logging
import sys
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_SLOT_OFFSET = 20 * _POINTER  # of `tp_as_buffer` in the PyTypeObject of CPython 3.11
_WRITABLE = 1  # PyBUF_WRITABLE
_GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_log = logging.getLogger("shardwise")
_slots: list[Any] = []  # the functions that slots point to, which must stay alive


def export_buffers(cls: _Class) -> _Class:
    """Let CPython 3.11 call `cls.__buffer__`, as later versions do by themselves; a class decorator."""
    if sys.version_info >= (3, 12):
        return cls
    get_buffer = ctypes.pythonapi.PyObject_GetBuffer
    get_buffer.argtypes, get_buffer.restype = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int), ctypes.c_int

    def slot(exporter: Any, view: int, flags: int) -> int:
        try:
            return int(get_buffer(exporter.__buffer__(flags), view, flags))
        except Exception as error:
            if not flags & _WRITABLE:  # callers that ask for a writable buffer try again without
                _log.error("no buffer of a %s: %s", type(exporter).__name__, error)
            ctypes.c_void_p.from_address(view + _POINTER).value = None  # `view.obj`: there is nothing to release
            return -1

    function = _GetBuffer(slot)
    _slots.append(function)
    procs = ctypes.c_void_p.from_address(id(cls) + _SLOT_OFFSET).value
    assert procs is not None  # every class written in Python has room for the slot
    ctypes.c_void_p.from_address(procs).value = ctypes.cast(function, ctypes.c_void_p).value
    return cls
