"""The lines of `plan.constraints()`, pasted into a copy of a program's source, for JAX's partitioner.

The copy is a package `benchmarks` in a temporary folder, imported in place of this one. A line stands after the
statement that it names, as a user would paste it. A line that JAX rejects is removed, and counted.
"""

import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

import jax

from benchmarks import peer
from benchmarks.workload import Workload
from shardwise.compiler.report.report import Plan
from shardwise.explain.constraints import Constraint
from shardwise.explain.hlo_wire import Wire, wire
from shardwise.explain.plan import Explanation
from shardwise.inside_jax.explain import trace

PACKAGE = Path(__file__).parent
# At the end of each file, so that the lines above keep their numbers.
IMPORTS = "\nimport jax\nfrom jax.sharding import PartitionSpec as P\n"


@final
@dataclass(frozen=True)
class Pasted:
    """A program with the constraints of its plan, compiled by JAX.

    Attributes:
        plan: the plan.
        applied: the constraints that JAX applied.
        rejected: the constraints that JAX rejected, with its error.
        outside: the constraints in files of libraries, which are not pasted.
        wire: the collectives of JAX's executable.
    """

    plan: Plan
    applied: tuple[Constraint, ...]
    rejected: tuple[tuple[Constraint, str], ...]
    outside: tuple[Constraint, ...]
    wire: Wire

    def difference(self) -> str:
        """Describe by how many bytes JAX's collectives of each kind differ from the planned ones, largest first."""
        sent: Counter[str] = Counter()
        for each in self.wire.collectives:
            sent[each.kind.replace("-", "_")] += round(each.sent * each.times)
        for row in self.plan.collectives:
            sent[_KINDS.get(row.kind, row.kind)] -= round(row.sent)
        largest = sorted(((kind, extra) for kind, extra in sent.items() if extra), key=lambda item: -abs(item[1]))
        return ", ".join(f"{kind} {extra:+,}" for kind, extra in largest[:3])


_KINDS = {"permute": "collective_permute"}


def paste_constraints(work: Workload) -> Pasted:
    """Plan a program, paste the constraints of the plan into a copy of its source, and compile that with `jax.jit`."""
    function, args = work.on(peer)
    lowered, _ = trace(function, args, {}).lower()
    plan = Explanation(lowered, with_advice=False).plan
    constraints: list[Constraint] = list(plan.constraints())
    outside = tuple(each for each in constraints if not Path(each.file).is_relative_to(PACKAGE))
    applied = [each for each in constraints if each not in outside]
    rejected: list[tuple[Constraint, str]] = []
    while True:
        try:
            compiled = _compile_pasted(work, applied)
        except Exception as error:
            wrong = _blamed(error, applied)
            if wrong is None:
                raise
            applied.remove(wrong)
            rejected.append((wrong, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        else:
            return Pasted(plan, tuple(applied), tuple(rejected), outside, wire(compiled.as_text()))


def _compile_pasted(work: Workload, constraints: Sequence[Constraint]) -> Any:
    """Compile a program with the constraints in its source."""
    mesh = peer.mesh(*work.mesh)  # set for all of the package, since libraries call a model to initialize it
    with tempfile.TemporaryDirectory() as folder, _package_in(Path(folder), constraints) as copy, jax.set_mesh(mesh):
        pasted = next(each for each in copy.programs() if each.name == work.name)
        function, args = pasted.on(peer)
        return jax.jit(function).lower(*args).compile()


@contextmanager
def _package_in(folder: Path, constraints: Sequence[Constraint]) -> Iterator[Any]:
    """Import a copy of the benchmarks with pasted constraints, and yield its module `inside_jax`."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in {each.file for each in constraints}:
        copy = folder / PACKAGE.name / Path(file).relative_to(PACKAGE)
        lines = copy.read_text().splitlines()
        for each in sorted((each for each in constraints if each.file == file), key=lambda each: -each.line):
            last = lines[each.line - 1]
            lines.insert(each.line, last[: len(last) - len(last.lstrip())] + each.code)
        copy.write_text("\n".join(lines) + IMPORTS)
    own = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == PACKAGE.name}
    for name in own:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield import_module(f"{PACKAGE.name}.inside_jax")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]:
            del sys.modules[name]
        sys.modules.update(own)


def _blamed(error: Exception, constraints: Sequence[Constraint]) -> Constraint | None:
    """Return the constraint whose pasted line raised an error; None if it was another line."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for each in constraints:
            inserted = sum(other.file == each.file and other.line < each.line for other in constraints)
            if Path(frame.filename).name == Path(each.file).name and frame.lineno == each.line + inserted + 1:
                return each
    return None
