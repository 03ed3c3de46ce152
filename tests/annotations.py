"""Count the parameters that are annotated `Any`, per package. `python -m tests.annotations` prints the table."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "shardwise"
MODULES = "modules"  # those directly below the root


def package(file: Path) -> str:
    """Return the name of the package below the root that has a file."""
    folder, *rest = file.relative_to(ROOT).parts
    return folder if rest else MODULES


def any_aliases(trees: list[ast.Module]) -> frozenset[str]:
    """Return `Any` and the names of the aliases of it: `KeyEntry: TypeAlias = Any` or `Leaf = Any`."""
    aliases = {"Any"}
    for tree in trees:
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(name), value=ast.Name("Any")):
                    aliases.add(name)
                case ast.Assign(targets=[ast.Name(name)], value=ast.Name("Any")):
                    aliases.add(name)
    return frozenset(aliases)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node. Expressions are left out: there are ten times as many."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the annotations of all parameters of the functions in a module."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = node.args
            for arg in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg):
                if arg is not None and arg.annotation is not None:
                    yield arg.annotation


def accepts_anything(annotation: ast.expr, aliases: frozenset[str]) -> bool:
    """Return whether an annotation is `Any`, an alias of it, or a union with one of these."""
    match annotation:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in aliases
        case ast.BinOp(left, ast.BitOr(), right):
            return accepts_anything(left, aliases) or accepts_anything(right, aliases)
    return False


def table() -> dict[str, tuple[int, int]]:
    """Return the number of parameters annotated `Any`, and that of all annotated parameters, per package."""
    aliases: frozenset[str] = frozenset()
    parameters: dict[Path, list[ast.expr]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(file.read_text())  # not kept: every garbage collection would visit all trees
        aliases |= any_aliases([tree])
        parameters[file] = list(annotations(tree))
    counts: dict[str, tuple[int, int]] = {}
    for file, found in parameters.items():
        untyped, total = counts.get(package(file), (0, 0))
        counts[package(file)] = untyped + sum(accepts_anything(each, aliases) for each in found), total + len(found)
    return {name: count for name, count in counts.items() if count[1]}


if __name__ == "__main__":
    for name, (untyped, total) in sorted(table().items()):
        print(f"{name:25}{untyped:6} of {total:6}{untyped / total:8.1%}")
