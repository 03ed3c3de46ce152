"""The oracle for modules: XLA compiles and runs them as they are."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from shardwise.base import _jaxlib
from shardwise.compiler.ir.types import ArrayType
from tests.device_shards import shards_to_numpy


@cache
def _devices() -> Any:
    return _jaxlib.cpu_client(1).devices()


def run_module(text: str, arguments: Sequence[Any], types: Sequence[ArrayType]) -> list[Any]:
    """Return the results of a module, whose types are `types`, for numpy arrays."""
    devices = _devices()
    executable = _jaxlib.compile_text(text, devices)
    handlers = [_jaxlib.result_handler(type.shape, type.dtype, devices) for type in types]
    buffers = [_jaxlib.put([x], devices, devices) for x in arguments]
    return [shards_to_numpy(x)[0] for x in _jaxlib.launcher(executable, handlers)(buffers)]
