"""The layouts of a plan as constraints to paste into the user's program, for users of another partitioner.

A constraint is written for each assignment to a name, `h = x @ w`, in the lines that the plan's values come from. The
value is the last that the statement computes in the forward pass. Where calls of one function, such as the layers of a
model, have the value in different layouts, there is no constraint. Nor is there one for a statement with a lambda or a
comprehension: its values may be computed there, and the name is a function or a pytree of several layouts.
"""

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.base.caches import registered_cache
from shardwise.base.call_site import format_line
from shardwise.compiler.report.report import Plan, ValueRow
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.spec import spec_of

_INNER_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BACKWARD = "backward"  # the scope of equations of a backward pass


@final
@dataclass(frozen=True)
class Constraint:
    """One constraint.

    Attributes:
        file: the path of the file.
        line: the last line of the statement, after which the constraint stands.
        name: the name of the variable.
        layout: its layout.
    """

    file: str
    line: int
    name: str
    layout: Layout

    @property
    def code(self) -> str:
        """The line of code; `P` is `jax.sharding.PartitionSpec`, and the mesh is the current one."""
        return f"{self.name} = jax.lax.with_sharding_constraint({self.name}, {spec_of(self.layout)})"

    def __str__(self) -> str:
        return f"after {format_line(self.file, self.line)}:  {self.code}"


@final
class Constraints(tuple[Constraint, ...]):
    """Constraints in the order of files and lines. They print as lines to paste."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def constraints_of(plan: Plan) -> Constraints:
    """Return the constraints that give the layouts of a plan to another partitioner."""
    layouts: dict[tuple[str, int, str], set[Layout]] = {}
    for file, statement, run in _runs(plan.values):
        name = _assigned_name(statement)
        if name is not None and run[-1].layout.dims:
            key = file, statement.end_lineno or statement.lineno, name
            layouts.setdefault(key, set()).update(Layout(row.layout.dims) for row in _results(run))
    found = [Constraint(*key, next(iter(each))) for key, each in layouts.items() if len(each) == 1]
    return Constraints(sorted(found, key=lambda each: (each.file, each.line)))


def _runs(rows: Sequence[ValueRow]) -> Iterator[tuple[str, ast.stmt, list[ValueRow]]]:
    """Yield each run of adjacent values that one statement of the forward pass computes."""
    run: list[ValueRow] = []
    current: tuple[str, ast.stmt] | None = None
    for row in rows:
        is_forward = bool(row.source.file) and BACKWARD not in row.source.scope
        statement = _statement(row.source.file, row.source.line) if is_forward else None
        place = None if statement is None else (row.source.file, statement)
        if place != current:
            if current is not None:
                yield *current, run
            current, run = place, []
        run.append(row)
    if current is not None:
        yield *current, run


def _results(run: Sequence[ValueRow]) -> list[ValueRow]:
    """Return the results of a run. There are several if the statement was executed several times in a row."""
    used = {name for row in run for name in row.operands}
    return [row for row in run if row.name not in used and row.type == run[-1].type]


def _assigned_name(statement: ast.stmt) -> str | None:
    """Return the name that a statement assigns an expression to; None for other statements."""
    if any(isinstance(node, _INNER_SCOPES) for node in ast.walk(statement)):
        return None
    match statement:
        case ast.Assign(targets=[ast.Name(name)]) | ast.AugAssign(target=ast.Name(name)):
            return name
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr()):
            return name
        case _:
            return None


def _statement(file: str, line: int) -> ast.stmt | None:
    """Return the innermost statement at a line of a file."""
    return _statements(file, "".join(linecache.getlines(file))).get(line)


@registered_cache(maxsize=64)
def _statements(file: str, text: str) -> dict[int, ast.stmt]:
    """Return the innermost statement at each line of a file; {} if it cannot be parsed."""
    try:
        tree = ast.parse(text, file)
    except SyntaxError:
        return {}
    found: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):  # outer statements are before those in them
        if isinstance(node, ast.stmt):
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node))
    return found
