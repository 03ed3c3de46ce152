"""StageDump: the program after every pass of one compilation, for the setting `dump_to` and `explain --stages`.

A stage is named after the function that returned it: `inline`, `layout_problem`, `lower`. The pipeline adds unformatted
stages, which are formatted when they are read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, final

from shardwise.compiler.candidates.layout_problem import LayoutProblem, format_candidates
from shardwise.compiler.ir.program import Program
from shardwise.compiler.lower.lower import StableHlo
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.plan.plan import LayoutPlan

Stage: TypeAlias = Program | LayoutProblem | LayoutPlan | LocalProgram | PartitionedProgram | StableHlo


@final
class StageDump:
    """The stages of one compilation, in order.

    Args:
        keeps: whether stages are kept. Otherwise the dump keeps no program alive and formats nothing.
    """

    def __init__(self, keeps: bool = True):
        self._keeps = keeps
        self._stages: list[tuple[str, Stage]] = []

    def add(self, name: str, stage: Stage) -> None:
        """Append the result of the pass `name`."""
        if self._keeps:
            self._stages.append((name, stage))

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the formatted program of every stage; an unchanged one names the last changed stage."""
        texts = [""]
        since = ""
        for name, stage in self._stages:
            text = _format(stage)
            # A search returns a plan and its local program as one stage; `choose` and `partition` return them as two.
            if text in (texts[-1], "\n".join(texts[-2:])):
                yield name, f"(unchanged since {since})"
            else:
                yield name, text
                since = name
            texts.append(text)

    def __str__(self) -> str:
        return "\n\n".join(f"== {index}. {name}\n{text}" for index, (name, text) in enumerate(self.texts(), 1))

    def write(self, folder: Path) -> None:
        """Write every stage to its own file, such as `02-inline.txt`. The folder is created."""
        folder.mkdir(parents=True, exist_ok=True)
        for index, (name, text) in enumerate(self.texts(), 1):
            (folder / f"{index:02}-{name}.txt").write_text(f"{text}\n")


def _format(stage: Stage) -> str:
    match stage:
        case LayoutProblem():
            return f"{stage}\n{format_candidates(stage)}"
        case PartitionedProgram():
            return f"{stage.plan}\n{stage.local}"
        case StableHlo():
            return stage.text.rstrip("\n")
        case _:
            return str(stage)
