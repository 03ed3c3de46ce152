"""The elements of dense constants, which MLIR's bindings return for some element types only."""

import re
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.types import ArrayType
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.types import array_type

_DENSE = re.compile(r"dense<(.*?)> : tensor<[^<>]*(?:<[^<>]*>)?>", re.DOTALL)
_ELEMENT = re.compile(r"\(([^()]*),([^()]*)\)|[^\s,\[\]()]+")


def constant_elements(operation: Any) -> NumpyArray:
    """Return the elements of a constant op: an array of its type, or a scalar if all are equal."""
    type = array_type(operation.results[0].type)
    try:
        value = operation.attributes["value"]
    except TypeError:  # the bindings have no class for complex elements
        return _from_text(str(operation), type)
    if type.dtype.kind != "c" and getattr(value, "is_splat", False):
        return _from_text(str(value), type)
    try:
        return np.array(value).astype(type.dtype, copy=False)
    except (TypeError, ValueError, RuntimeError):  # a type that the buffer protocol lacks, such as bfloat16
        return _from_text(str(value), type)


def _from_text(text: str, type: ArrayType) -> NumpyArray:
    """Return the elements of an attribute in MLIR's syntax; a scalar if it states one for all."""
    match = _DENSE.search(text)
    if match is None:
        raise UnsupportedError(
            "constants outside of the module (`dense_resource`) and sparse ones are not supported. Pass the array as "
            "an argument, or write it as a `dense` attribute."
        )
    body = match[1].strip()
    if body.startswith('"0x'):
        return _from_hex(body.strip('"'), type)
    elements = [_element(found, type) for found in _ELEMENT.finditer(body)]
    array = np.array(elements, type.dtype)
    return array[0] if len(elements) == 1 and not body.startswith("[") else array.reshape(type.shape)


def _from_hex(text: str, type: ArrayType) -> NumpyArray:
    data = bytes.fromhex(text[2:])
    if type.dtype == np.bool_ and len(data) == -(-type.size // 8):  # packed, the lowest bit first
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[: type.size].astype(np.bool_).reshape(type.shape)
    elements = np.frombuffer(data, type.dtype)
    return elements[0] if len(elements) == 1 else elements.reshape(type.shape)


def _element(match: re.Match[str], type: ArrayType) -> Any:
    if type.dtype.kind == "c":
        half = np.dtype(np.float32 if type.dtype == np.complex64 else np.float64)
        real, imaginary = (_number(part.strip(), half) for part in match.groups())
        return complex(real, imaginary)
    return _number(match[0], type.dtype)


def _number(text: str, dtype: Any) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if not is_float(dtype):
        return int(text, 0)
    if text.startswith("0x"):  # the bits of a number, such as NaN
        return np.frombuffer(int(text, 16).to_bytes(dtype.itemsize, "little"), dtype)[0]
    return np.array(float(text)).astype(dtype)[()]
