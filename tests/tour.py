"""The stages in docs/tour.md. `python -m tests.tour` writes them.

The example is the first program of README.md. A block of the page has heads of stages, such as `== 13. choose`.
Below each head is the text that `shardwise explain --stages` prints.
"""

import re
import runpy
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from shardwise.compiler.stage_dump import StageDump
from shardwise.explain.plan import prepare

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "tour.md"
_HEAD = re.compile(r"^== (\d+)\. (\w+)$", re.MULTILINE)
_BLOCK = re.compile(r"(?<=^```\n)== .*?\n(?=```$)", re.MULTILINE | re.DOTALL)


def example_stages() -> dict[tuple[str, str], str]:
    """Return the text of every stage of README's example, by its index and name, without the locations in StableHLO."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        script = Path(folder) / "mlp.py"
        script.write_text(code[1])
        example = runpy.run_path(str(script))
        dump = StageDump()
        prepare(example["mlp"], (example["x"], example["w1"], example["w2"]), {}, None, dump)
    texts = enumerate(dump.texts(), 1)
    return {(str(index), name): re.sub(r' loc\("[^\n]*\)$', "", text, flags=re.M) for index, (name, text) in texts}


def with_stages(page: str, stages: dict[tuple[str, str], str]) -> str:
    """Return the page with the text of each stage below its head.

    Raises:
        KeyError: if the page has the head of a stage that the example does not have.
    """

    def block(match: re.Match[str]) -> str:
        heads = _HEAD.findall(match[0])
        return "\n".join(f"== {index}. {name}\n{stages[index, name]}\n" for index, name in heads)

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    DOCUMENT.write_text(with_stages(DOCUMENT.read_text(), example_stages()))
