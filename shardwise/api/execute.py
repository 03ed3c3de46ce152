"""Programs on concrete arrays: compiled, launched, and found again.

`prepare` turns a program and the arrays it is called with into a `Launch`. The executor runs single ops and whole
functions of `ops/methods` outside every frame; importing this module installs it.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, final

import numpy as np

from shardwise.api.boundary import boundary
from shardwise.api.move import moved
from shardwise.api.numbers import check_numbers
from shardwise.api.request import Request, Target, default_device, hoisted, stages
from shardwise.api.watch import tell
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.callback import Callback
from shardwise.compiler.ops.inspect import Inspect
from shardwise.compiler.ops.operands import PYTHON_SCALARS, type_of
from shardwise.compiler.pipeline import load
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.config import config
from shardwise.errors import UnexpectedTracerError
from shardwise.runtime.array import Array, deleted_error, memory, place
from shardwise.runtime.executable import Executable
from shardwise.runtime.sharding import Sharding, SingleDeviceSharding


@final
class Launch:
    """A compiled program for arrays of certain signatures: moves those that lie elsewhere, runs, wraps."""

    def __init__(
        self, executable: Executable, request: "Request", moves: dict[int, Sharding], constants: Sequence[Array]
    ):
        self.executable = executable
        self.request = request
        self.moves = moves
        self.constants = list(constants)
        self._plain = request.kept is None and not moves and not constants and True not in request.donated

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        if self._plain and not (memory.given_up or config.debug_nans or config.debug_infs):
            return self.executable([array.buffers for array in arrays])
        if self.request.kept is not None:
            arrays = [arrays[number] for number in self.request.kept if number < len(arrays)]
        if memory.given_up:  # jaxlib crashes on buffers that are gone
            for number, array in enumerate(arrays):
                if array.is_deleted():
                    name = f"argument {self.request.names[number]} of `{self.request.program.name}`"
                    raise deleted_error(array.type, name)
            for array in self.constants:
                if array.is_deleted():
                    raise deleted_error(array.type, f"an array that `{self.request.program.name}` closes over")
        if True in self.request.donated:
            memory.given_up = True
        buffers = [array.buffers for array in arrays]
        if self.moves:
            for number, sharding in self.moves.items():
                buffers[number] = moved(arrays[number], sharding).buffers
        if self.constants:
            buffers += [array.buffers for array in self.constants]
        results = self.executable(buffers)
        if config.debug_nans or config.debug_infs:
            check_numbers(self.request.program, [*arrays, *self.constants], results)
        return results


def prepare(request: Request, constants: Sequence[Array] = ()) -> Launch:
    """Compile a request. `constants` are captured arrays, bound as the last inputs."""
    request, constants = hoisted(request, constants)
    first = len(request.signatures) - len(constants)
    request = request.used()
    if request.kept is not None:
        constants = [constants[number - first] for number in request.kept if number >= first]
        first = len(request.signatures) - len(constants)
    target = request.target()
    compiled, moves = stages(request, target)
    target = target.refined(compiled.sharded.mesh)
    tell(compiled, target)
    for number, is_donated in enumerate(request.donated):
        if is_donated and number not in compiled.module.aliases:
            given = request.signatures[number]
            warnings.warn(
                f"{request.names[number]} of `{request.program.name}` is donated, but no result has its type and "
                f"layout ({given.type} in {given.sharding}): its memory is not reused.",
                stacklevel=4,
            )
    shardings = [
        _as_asked(asked, layout, target)
        for asked, layout in zip(request.out_shardings, compiled.plan.outputs, strict=True)
    ]
    executable = load(compiled, target.devices, shardings, target.committed)
    bound = [moved(array, moves.pop(first + i)) if first + i in moves else array for i, array in enumerate(constants)]
    return Launch(executable, request, moves, bound)


def _as_asked(asked: Sharding | None, layout: Layout, target: Target) -> Sharding:
    """The sharding of a result: the user's own, where it leaves nothing open."""
    if asked is None or asked.pin((1,) * len(layout.dims)).open_dims:
        return target.sharding(layout)
    return asked


def as_array(x: Any, name: str = "array") -> Array:
    """`x` as an Array: numpy arrays and scalars are copied to the default device, uncommitted."""
    if isinstance(x, Array):
        return x
    if isinstance(x, Tracer):
        raise UnexpectedTracerError(x.frame.leak(x))
    if isinstance(x, PYTHON_SCALARS):
        # 0.0 and -0.0 are equal but not the same: the text tells them apart.
        return _scalar(type_of(x), x, str(x), default_device())
    return place(np.asarray(x), type_of(x, name), SingleDeviceSharding(default_device()), committed=False)


@lru_cache(maxsize=1024)
def _scalar(given: ArrayType, value: Any, text: str, device: Any) -> Array:
    return place(np.asarray(value, given.dtype), given, SingleDeviceSharding(device), committed=False)


class _Executor:
    """Ops and functions on concrete arrays, outside every frame."""

    def __init__(self) -> None:
        self._launches: dict[Any, Launch] = {}

    def place(self, value: Any) -> Array:
        return as_array(value)

    def move(self, array: Array, sharding: Sharding) -> Array:
        return moved(array, sharding)

    def run(self, op: Op, args: Sequence[Array]) -> tuple[Array, ...]:
        """One op."""
        if isinstance(op, Callback):
            found = op.function(*(x.numpy() for x in args))
            return tuple(as_array(x) for x in found)
        if isinstance(op, Inspect):
            op.look(args[0].sharding)
            return ()
        key = (op, config.enable_x64, *(x.signature for x in args))
        launch = self._launches.get(key)
        if launch is None:
            inputs = [Value(x.type) for x in args]
            outputs = [Value(type) for type in result_types(op, tuple(value.type for value in inputs))]
            program = Program(tuple(inputs), (Equation(op, inputs, outputs, user_source()),), tuple(outputs), op.name)
            launch = self._launches[key] = prepare(_request(program, args))
        return tuple(launch(args))

    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> Array:
        """A function of arrays with static keywords, as one program."""
        return self.several(function, args, static)[0]

    @boundary
    def several(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> list[Array]:
        """The same of a function that may return a list."""
        arrays = [x if isinstance(x, Array) else as_array(x, function.__name__) for x in args]
        key = (function, config.enable_x64, *(x.signature for x in arrays), *static.items())
        launch = self._launches.get(key)
        if launch is None:

            def listed(*xs: Any) -> list[Any]:
                found = function(*xs, **static)
                return found if isinstance(found, list) else [found]

            program, captured = build(listed, [x.type for x in arrays], function.__name__)
            assert not captured, f"{function.__name__} closes over arrays"
            launch = self._launches[key] = prepare(_request(program, arrays))
        return launch(arrays)


def _request(program: Program, args: Sequence[Array]) -> Request:
    names = tuple(f"operand {number}" for number in range(len(args)))
    return Request(program, tuple(x.signature for x in args), (None,) * len(program.outputs), names)


installed.executor = _Executor()
