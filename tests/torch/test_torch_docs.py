"""The code about modules in docs/from-pytorch.md runs. tests/test_docs.py runs its blocks that need no PyTorch."""

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/from-pytorch.md"


@pytest.mark.filterwarnings("default")
def test_the_code_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("\n".join(re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    assert "['0.norm.weight', '0.norm.bias', '0.up.weight']" in printed
    assert "train.py:" in printed and "['1.up.weight']" in printed
