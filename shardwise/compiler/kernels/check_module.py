"""check_module: check Triton IR that a user wrote, before XLA compiles it.

The text is parsed and verified with jaxlib, and the parameters of its function are compared with the arrays of the
call. An error shows the line of the IR.
"""

import re
from collections.abc import Sequence

from shardwise.base._jaxlib import triton_functions
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.triton_ir import pointer_elements
from shardwise.errors import KernelError

_SHOWN = 3  # of the errors in a module


def parse_module(title: str, text: str) -> tuple[str, list[str]]:
    """Return the name and the parameter types of the public function of a module.

    Args:
        title: the name of the kernel, for errors.
        text: the module.

    Raises:
        KernelError: if the text is not valid Triton IR, or does not have one public function.
    """
    try:
        functions = triton_functions(text)
    except ValueError as error:
        raise KernelError(title, f"its Triton IR is not valid.{_excerpts(text, error.args)}") from None
    public = [function for function in functions if function[1] != "private"]
    if len(public) != 1:
        names = f": {', '.join('@' + name for name, *_ in public)}" if public else ""
        raise KernelError(
            title, f"its Triton IR must have one public `tt.func`, the one to launch, but it has {len(public)}{names}"
        )
    ((name, _, signature),) = public
    inside = re.fullmatch(r"\((.*)\) -> \(\)", signature)
    if inside is None:
        raise KernelError(title, f"@{name} returns values, {signature}: a kernel writes its results to memory")
    return name, [part for part in inside[1].split(", ") if part]


def check_module(title: str, text: str, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> str:
    """Return the name of the function of a module, whose parameters must be the addresses of these arrays.

    Raises:
        KernelError: if the text is not valid Triton IR, or has other parameters.
    """
    name, parameters = parse_module(title, text)
    arrays = [*operands, *results]
    if len(parameters) != len(arrays):
        raise KernelError(
            title,
            f"@{name} has {len(parameters)} parameters, but the call has {len(operands)} operands and {len(results)} "
            "results. Its parameters must be one pointer per operand, then one per result; numbers must be constants "
            "of the IR (`tl.constexpr` in Triton), or elements of an operand.",
        )
    for index, (parameter, type) in enumerate(zip(parameters, arrays, strict=True)):
        if parameter not in {f"!tt.ptr<{element}>" for element in pointer_elements(type.dtype)}:
            role = f"operand {index}" if index < len(operands) else f"result {index - len(operands)}"
            raise KernelError(
                title,
                f"parameter {index} of @{name} is {parameter}, but {role} is {type}: use a pointer to its elements",
            )
    return name


def _excerpts(text: str, errors: Sequence[tuple[str, str]]) -> str:
    """Return the messages of errors, each with its line of the IR."""
    lines = text.splitlines()
    parts = []
    for location, message in errors[:_SHOWN]:
        inside = re.search(r'"-":(\d+):(\d+)', location)
        if inside is None or int(inside[1]) > len(lines):
            parts.append(f"\n  {location}: {message.strip()}")
        else:
            parts.append(f"\n  line {inside[1]}: {message.strip()}\n    {lines[int(inside[1]) - 1].strip()}")
    return "".join(parts)
