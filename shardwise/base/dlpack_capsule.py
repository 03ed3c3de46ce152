"""The tensor in a DLPack capsule, as DLPack lays it out in memory."""

import ctypes


class Tensor(ctypes.Structure):
    """DLPack's DLTensor, at the start of a capsule's memory."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def tensor_in(capsule: object) -> Tensor:
    """Return the tensor in an unused capsule. It is valid as long as the capsule exists."""
    return Tensor.from_address(_pointer_of(capsule, b"dltensor"))
