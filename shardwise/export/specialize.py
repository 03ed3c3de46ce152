"""specialize: fix what a module leaves open until it is called: its platform, its symbolic dims, and its mesh."""

import re
from collections.abc import Sequence
from io import BytesIO

from shardwise.base._jaxlib import MlirObject, mlir_ir, refine_polymorphic_shapes
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import tensor_type
from shardwise.errors import ProgramError
from shardwise.export.safety_checks import operations

_EXPORTED_MAIN = "_exported_main"
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")


def specialize(module: MlirObject, platform: int | None, arguments: Sequence[ArrayType]) -> bytes:
    """Return a module with static shapes, as MLIR bytecode.

    Args:
        module: the module of MLIR, which is changed.
        platform: the index of the platform, if it is the first argument of the module's `main`; else None.
        arguments: the types of the other arguments.

    Raises:
        ProgramError: if an assertion of the module about its sizes fails, or if they do not determine all shapes.
    """
    symbols = mlir_ir.SymbolTable(module.operation)
    main = symbols["main"]
    with module.context:
        main.attributes["sym_visibility"] = mlir_ir.StringAttr.get("private")
    symbols.set_symbol_name(main, _EXPORTED_MAIN)
    wrapper = mlir_ir.Module.parse(_wrapper(main.type, platform, arguments), module.context)
    for operation in list(wrapper.body.operations):
        if operation.name.value == "main":
            operation.detach_from_parent()
            module.body.append(operation)
    try:
        return bytes(refine_polymorphic_shapes(bytecode(module), True, True, True))
    except Exception as error:  # jaxlib's errors have no common class
        reason = re.search(r"error: (.*)", str(error))
        text = reason[1] if reason else str(error)
        raise ProgramError(f"the sizes of the arguments do not fit the module: {text}") from error


def _wrapper(type: MlirObject, platform: int | None, arguments: Sequence[ArrayType]) -> str:
    """Return a module whose `main` calls the exported one with static types."""
    dynamic, results = [str(each) for each in type.inputs], [str(each) for each in type.results]
    heads = ", ".join(f"%arg{index}: {tensor_type(each)}" for index, each in enumerate(arguments))
    lines, operands = [], []
    if platform is not None:
        lines.append(f"%platform = stablehlo.constant dense<{platform}> : {dynamic[0]}")
        operands.append("%platform")
    for index, each in enumerate(arguments):
        target = dynamic[len(operands)]
        lines.append(f"%c{index} = stablehlo.convert %arg{index} : ({tensor_type(each)}) -> {target}")
        operands.append(f"%c{index}")
    outs, count = ", ".join(results), len(results)
    uses = ", ".join(f"%r#{index}" for index in range(count)) if count > 1 else "%r" if count else ""
    call = f"call @{_EXPORTED_MAIN}({', '.join(operands)}) : ({', '.join(dynamic)}) -> ({outs})"
    lines.append(f"%r{f':{count}' if count > 1 else ''} = {call}" if count else call)
    lines.append(f"return {uses} : {outs}" if count else "return")
    body = "\n".join(lines)
    return (
        f"module {{\nfunc.func private @{_EXPORTED_MAIN}({', '.join(dynamic)}) -> ({outs})\n"
        f"func.func public @main({heads}) -> ({outs}) {{\n{body}\n}}\n}}"
    )


def drop_constraints(module: MlirObject) -> bytes:
    """Return a module without its sharding constraints, which is then for any mesh, as MLIR bytecode."""
    for operation in list(operations(module)):
        if operation.name in _CONSTRAINTS:
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
    return bytecode(module)


def has_op(module: MlirObject, *names: str) -> bool:
    """Return whether a module of MLIR has an op of one of these names."""
    return any(operation.name in names for operation in operations(module))


def has_constraints(module: MlirObject) -> bool:
    """Return whether a module states shardings of values other than arguments and results."""
    return has_op(module, *_CONSTRAINTS)


def bytecode(module: MlirObject) -> bytes:
    """Return a module as MLIR bytecode."""
    with BytesIO() as file:
        module.operation.write_bytecode(file)
        return file.getvalue()
