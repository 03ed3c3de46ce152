"""triton_kernel: a Triton kernel that a user wrote becomes an op."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import check_function, function_name
from shardwise.api.flatten import check_outputs
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.check_module import parse_module
from shardwise.compiler.kernels.kernel import plain_program
from shardwise.compiler.kernels.user_kernel import KernelDefinition, UserKernel
from shardwise.compiler.ops.shape.constants import ArrayConstant
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.errors import UnexpectedTracerError
from shardwise.experimental.sharding_rule import BATCHING, SdyShardingRule, factor_rule, parse_rule_and_options
from shardwise.typing import ArrayLike

Grid = int | tuple[int, ...]
_CAPTURED = "uses an array that is not an operand: pass it as one, because each device computes with its shards"


def triton_kernel(
    plain: Callable[..., Any],
    *,
    ir: str | Callable[..., str],
    grid: Grid | Callable[..., Grid],
    num_warps: int | Callable[..., int] = 4,
    num_stages: int = 1,
    name: str | None = None,
    operand_types: Sequence[Any] | None = None,
    sharding_rule: str | tuple[str, Mapping[str, Any]] | None = None,
    gradient: Callable[..., Any] | None = None,
    supports: Callable[..., str] | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
) -> Callable[..., Any]:
    """Make a function that is a Triton kernel of yours on NVIDIA GPUs, and a program of other ops elsewhere.

    Functions of types below are called with the types of the operands and then of the results, each with `shape` and
    `dtype`: those of the array on one device, or of its shard. Make each kernel once: the definition is compared by
    identity.

    Args:
        plain: a function of arrays that returns an array, or a pytree of arrays: what the kernel computes. It runs
            where the kernel does not.
        ir: a module in Triton IR, or a function of types that returns one. The module has one public `tt.func`. Its
            parameters are the addresses of the operands, then of the results, which are row-major. `TritonBuilder`
            builds such modules, and `str(compiled.asm["ttir"])` of the triton package is one.
        grid: the number of programs along up to three axes, or a function of types that returns it.
        num_warps: the number of warps of a program, or a function of types that returns it.
        num_stages: the number of iterations of a loop that load at the same time.
        name: the name in reports and errors; by default that of `plain`.
        operand_types: if `ir` is a module, the types of the operands that it was made for. Others run `plain`.
        sharding_rule: a rule such as "... k, k -> ... k", or a tuple of a rule and a dict of its options, as in
            `custom_partitioning`. Each device runs the kernel on its shards. Without a rule, operands are replicated.
            Operands and results of the form `... k` may have further leading dims, which `vmap` adds.
        gradient: a function of the tuples of operands, results and cotangents of the results that returns one cotangent
            per operand, or None for zero. Without one, `plain` is differentiated.
        supports: a function of types that returns why the kernel does not support them, or "". Those run `plain`.
        input_output_aliases: for an operand, the result that overwrites it. XLA copies the operand if it is used again.

    Returns:
        A function of arrays with the results of `plain`.

    Raises:
        TypeError: if an argument is of a wrong type, or `ir` is a module and there are no `operand_types`; when the
            function is called, if `plain` uses arrays that are not operands.
        ValueError: if the sharding rule, the grid, the number of warps or stages, or an alias is wrong.
        KernelError: if `ir` is a module that is not valid; if it is a function, when a call is compiled for a GPU.

    Example:
        >>> def double(x, result):
        ...     kernel = jax.kernels.TritonBuilder("double", [x, result])
        ...     offsets = kernel.program_id() * 128 + kernel.range(128)
        ...     mask = offsets < x.size
        ...     kernel.store(kernel.pointers[1], offsets, kernel.load(kernel.pointers[0], offsets, mask) * 2.0, mask)
        ...     return kernel.text()
        >>> f = jax.kernels.triton_kernel(lambda x: 2 * x, ir=double, grid=lambda x, _: x.size // 128 + 1)
        >>> f(jnp.arange(3.0))
        Array([0., 2., 4.], dtype=float32)
    """
    check_function("triton_kernel", plain)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"triton_kernel: name must be a string, not {name!r}")
    title = name or function_name(plain)
    for parameter, function in (("gradient", gradient), ("supports", supports)):
        if function is not None and not callable(function):
            raise TypeError(f"triton_kernel: {parameter} of {title!r} must be a function, not {function!r}")
    if not callable(grid):
        _grid(title, grid, ())
    if not callable(num_warps):
        _warps(title, num_warps, ())
    if not isinstance(num_stages, int) or num_stages < 1:
        raise ValueError(f"triton_kernel: num_stages of {title!r} is {num_stages!r}; it must be a positive integer")
    if isinstance(ir, str):
        if operand_types is None:
            raise TypeError(
                f"triton_kernel: the module of {title!r} has no shapes: pass operand_types, the types of the operands "
                "that it was made for, or make `ir` a function of types"
            )
        parse_module(title, ir)
    elif not callable(ir):
        raise TypeError(f"triton_kernel: ir must be a module or a function of types, not {ir!r}")
    expected = None if operand_types is None else _operand_types(title, operand_types)
    rule, batched = _sharding_rule(sharding_rule)
    aliases = dict(input_output_aliases or {})
    structures: dict[tuple[ArrayType, ...], Any] = {}

    def flat(*operands: Any) -> list[Any]:
        leaves, structures[_types(operands)] = tree.flatten(plain(*operands))
        check_outputs(plain, leaves)
        return [as_operand(leaf) for leaf in leaves]

    def obstacle(*types: ArrayType) -> str:
        operands = types[: len(expected)] if expected is not None else ()
        if expected is not None and tuple(type.plain for type in operands) != expected:
            return f"its module was made for {_list(expected)}, not for {_list(operands)}"
        return "" if supports is None else supports(*types) or ""

    def launch(*types: ArrayType) -> tuple[tuple[int, int, int], int, int]:
        return _grid(title, grid, types), _warps(title, num_warps, types), num_stages

    definition = KernelDefinition(
        title,
        flat,
        (lambda *types: ir) if isinstance(ir, str) else ir,
        launch,
        rule,
        gradient,
        obstacle,
        batched,
        tuple((result, operand) for operand, result in sorted(aliases.items())),
    )
    op = UserKernel(title, definition)

    @wraps(plain)
    def call(*args: ArrayLike) -> Any:
        operands = [as_operand(x, title) for x in args]
        types = _types(operands)
        definition.rule(_plain_program(title, op, types))  # a wrong rule is an error at the call
        _check_aliases(title, aliases, op, types)
        results = op(*operands)
        return structures[types].unflatten(list(results))

    return call


def _operand_types(title: str, types: Sequence[Any]) -> tuple[ArrayType, ...]:
    if not isinstance(types, Sequence) or not all(hasattr(type, "shape") and hasattr(type, "dtype") for type in types):
        raise TypeError(
            f"triton_kernel: operand_types of {title!r} must be a sequence of `ShapeDtypeStruct`s, not {types!r}"
        )
    return tuple(ArrayType(tuple(type.shape), type.dtype) for type in types)


def _plain_program(title: str, op: UserKernel, types: tuple[ArrayType, ...]) -> Program:
    """Return the program of other ops. Raises TypeError if it uses arrays that are not operands."""
    try:
        program = plain_program(op, types)
    except UnexpectedTracerError as error:
        raise TypeError(f"triton_kernel: {title!r} {_CAPTURED}. {error}") from None
    for equation in program.walk():
        if isinstance(equation.op, ArrayConstant):
            array = equation.outputs[0].type
            raise TypeError(f"triton_kernel: {title!r} {_CAPTURED}: {array} at {equation.source.place}")
    return program


def _types(operands: Sequence[Any]) -> tuple[ArrayType, ...]:
    return tuple(x.type.plain.strong() for x in operands)


def _check_aliases(title: str, aliases: Mapping[int, int], op: UserKernel, operands: Sequence[ArrayType]) -> None:
    results = op.out_types(*operands)
    for operand, result in aliases.items():
        if not (isinstance(operand, int) and isinstance(result, int)):
            raise TypeError(
                f"triton_kernel: input_output_aliases of {title!r} has {operand!r}: {result!r}; write the index of the "
                "operand, and that of the result"
            )
        if not (0 <= operand < len(operands) and 0 <= result < len(results)):
            raise ValueError(
                f"triton_kernel: input_output_aliases of {title!r} has {operand}: {result}, and there are "
                f"{len(operands)} operands and {len(results)} results, counted from 0"
            )
        if operands[operand].plain != results[result].plain:
            raise ValueError(
                f"triton_kernel: input_output_aliases of {title!r} has {operand}: {result}, but operand {operand} is "
                f"{operands[operand]} and result {result} is {results[result]}: arrays of one type share a buffer"
            )


def _sharding_rule(
    rule: str | tuple[str, Mapping[str, Any]] | None,
) -> tuple[Callable[[Program], FactorRule], tuple[bool, ...] | None]:
    """Return the factor rule of a program, and for each operand whether it may have further leading dims.

    The latter is None if a result may not.
    """
    if rule is None:
        return lambda program: factor_rule(None, program, False), None
    parsed = parse_rule_and_options("triton_kernel", rule)
    batched = [[_has_leading_dims(array) for array in arrays] for arrays in _mappings(parsed)]
    return lambda program: factor_rule(parsed, program, False), tuple(batched[0]) if all(batched[1]) else None


def _mappings(rule: SdyShardingRule) -> tuple[Sequence[Any], Sequence[Any]]:
    return rule.operand_mappings, rule.result_mappings


def _has_leading_dims(array: Sequence[Any]) -> bool:
    return bool(array) and array[0] == BATCHING


def _grid(title: str, grid: Grid | Callable[..., Grid], types: Sequence[ArrayType]) -> tuple[int, int, int]:
    found = grid(*types) if callable(grid) else grid
    sizes = (found,) if isinstance(found, int) else tuple(found)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(
            f"triton_kernel: the grid of {title!r} for {_list(types)} is {found!r}; it must be one to three positive "
            "integers"
        )
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]


def _warps(title: str, num_warps: int | Callable[..., int], types: Sequence[ArrayType]) -> int:
    found = num_warps(*types) if callable(num_warps) else num_warps
    if not isinstance(found, int) or found not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"triton_kernel: num_warps of {title!r} is {found!r}; it must be 1, 2, 4, 8, 16 or 32")
    return found


def _list(types: Sequence[ArrayType]) -> str:
    return f"({', '.join(map(str, types))})"
