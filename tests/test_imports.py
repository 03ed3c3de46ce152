"""Modules of Shardwise do not import each other in a cycle, except for a few pairs inside one family of ops.

A derivative rule may need an op whose own rule needs this one: the transpose of a sum is a broadcast, and that of a
broadcast is a sum. Such modules import each other as modules, not by name.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import shardwise

ROOT = Path(shardwise.__file__).parent
ALLOWED = [
    {"shardwise.compiler.ops.reduce.broadcast", "shardwise.compiler.ops.reduce.sum"},
    {"shardwise.compiler.ops.elementwise.powers", "shardwise.compiler.ops.elementwise.transcendental"},
    {"shardwise.compiler.ops.indexing.gather", "shardwise.compiler.ops.indexing.scatter"},
]


def module_files() -> dict[str, Path]:
    """Return the modules of the package by dotted name."""
    names = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def runtime_imports(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run with the module: not those in functions, nor those under `if TYPE_CHECKING`."""
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.expr():
                pass
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from runtime_imports(node.orelse)
            case _:
                yield from runtime_imports(ast.iter_child_nodes(node))


def parse_imports(source: str) -> ast.Module:
    """Parse a module as far as it may import: up to the first function or class, or all of it if an import is indented.

    Ruff rejects other imports below that.
    """
    if not re.search(r"(?m)(?:^ |[:;]) *(?:import|from) ", source):
        before, *rest = re.split(r"(?m)^(?:class |def |async def )", source, maxsplit=1)
        source = before + "class Rest: ..." * bool(rest)  # it may have decorators
    return ast.parse(source)


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    files = module_files()
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        imported = set()
        for node in runtime_imports([parse_imports(path.read_text())]):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            else:
                assert not node.level, f"{name}: relative import of {node.module}"
                submodules = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= submodules & files.keys()
                if submodules - files.keys():
                    imported.add(str(node.module))
        graph[name] = imported & files.keys()
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            place = stack.index(module)
            component = set(stack[place:])
            del stack[place:]
            if len(component) > 1:
                components.append(component)

    for module in graph:
        if module not in index:
            visit(module)
    return components


def test_cycles_finds_strongly_connected_modules():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert cycles(graph) == [{"b", "c"}]


def test_imports_under_type_checking_and_in_functions_do_not_count():
    lines = ["import a", "if TYPE_CHECKING:", "  import b", "else:", "  import c", "def f():", "  import d", "class C:"]
    imports = list(runtime_imports([ast.parse("\n".join([*lines, "  import e"]))]))
    assert [alias.name for node in imports for alias in node.names] == ["a", "c", "e"]


def test_only_the_documented_pairs_import_each_other():
    found = {frozenset(component) for component in cycles(import_graph())}
    assert found == {frozenset(pair) for pair in ALLOWED}


def test_imports_are_read_up_to_the_first_function_unless_one_is_indented():
    header = "import a\nONE = 1\n"
    for source, names in (
        (header + "@b\ndef f(): ...\nTWO = 2\n", ["a"]),
        (header + "class C:\n    import b\n", ["a", "b"]),
        (header + "class C: ...\nif ONE: import b\n", ["a", "b"]),
    ):
        imports = runtime_imports([parse_imports(source)])
        assert [alias.name for node in imports for alias in node.names] == names
