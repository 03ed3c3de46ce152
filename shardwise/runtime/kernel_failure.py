"""check_kernels: turn XLA's failure to compile a Triton kernel into an error with its name and the user's line."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

from shardwise.base._jaxlib import (
    CompilerOptions,
    RuntimeFailure,
    compile_for_topology,
    compile_text,
    is_compile_only,
)
from shardwise.compiler.kernels.kernel import TARGET
from shardwise.errors import KernelError

_CALL = re.compile(r'\s*(%\w+)(?::\d+)? = "stablehlo.custom_call"\(([^)]*)\)')
_NAME, _PLACE = re.compile(r'[{ ]name = "([^"]*)"'), re.compile(r'loc\("(?:[^"]*/)?([^"/]*:\d+)/[^"]*"')


@final
class _Call(NamedTuple):
    """A call of a kernel: its name, the user's line, and a module with this call alone."""

    kernel: str
    place: str
    module: str


def check_kernels(error: RuntimeFailure, module: str, devices: Sequence[Any], options: CompilerOptions) -> None:
    """Raise a KernelError if `error` comes from a kernel: one that does not compile as the only op of a module.

    Args:
        error: the failure of a compilation.
        module: the StableHLO module that was compiled.
        devices: its devices.
        options: its compiler options.
    """
    for call in dict.fromkeys(_calls(module)):
        try:
            (compile_for_topology if is_compile_only(devices[0]) else compile_text)(
                call.module, devices[:1], options=options
            )
        except RuntimeFailure as failure:
            reason = str(failure).partition("\n\ninput ir:")[0]
            raise KernelError(call.kernel, f"XLA says: {reason}", call.place) from error


def _calls(module: str) -> Iterator[_Call]:
    for line in module.splitlines():
        call = _CALL.match(line)
        if call is None or f'call_target_name = "{TARGET}"' not in line:
            continue
        result, names = call[1], list(dict.fromkeys(call[2].split(", "))) if call[2] else []
        signature, _, location = line[line.rindex("}> : (") + len("}> : (") :].partition(" loc(")
        operands, _, results = signature.partition(") -> (")
        types = dict(zip(call[2].split(", "), operands.split(", "), strict=True)) if names else {}
        outputs = results.rstrip(")").split(", ")
        arguments = ", ".join(f"{_argument(name)}: {types[name]}" for name in names)
        returned = ", ".join(f"{result}#{index}" for index in range(len(outputs)))
        passed = ", ".join(map(_argument, call[2].split(", "))) if names else ""
        renamed = line[: call.start(2)] + passed + line[call.end(2) :]
        place = _PLACE.search(f"loc({location}")
        name = _NAME.search(line)
        yield _Call(
            name[1] if name else "",
            place[1] if place else "",
            f"module {{ func.func @main({arguments}) -> ({results.rstrip(')')}) {{\n"
            f"{renamed}\nreturn {returned} : {', '.join(outputs)} }} }}",
        )


def _argument(name: str) -> str:
    """Return a value as the name of an argument: `%3#0` is a result of an op that the module does not have."""
    return f"%of_{name[1:].replace('#', '_')}"  # a name that begins with a digit has only digits
