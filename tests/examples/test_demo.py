"""`make demo`: a killed training resumes on another mesh with equal losses."""

from pathlib import Path

import demo
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_killed_training_resumes_with_equal_losses(tmp_path, capsys):
    losses, expected = demo.main(["--steps", "60", "--save-every", "5", "--folder", str(tmp_path / "demo")])
    assert len(losses) == len(expected) == 60 and losses[-1] < losses[0] - 1
    printed = capsys.readouterr().out
    assert "killed by SIGKILL; the latest checkpoint is that of step " in printed
    assert "continue after step " in printed and "all_reduce over data" in printed
    assert "all 60 losses equal those on one device" in printed
    for file in ("resumed/plan.html", "loss.png", "resumed/checkpoints"):
        assert (tmp_path / "demo" / file).exists() and str(tmp_path / "demo" / file) in printed


def test_losses_that_differ_are_an_error():
    assert demo.compare([2.0, 1.0], [2.0, 1.00005]) == pytest.approx(5e-5, rel=1e-3)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        demo.compare([2.0, 1.0], [2.0, 1.001])


def test_makefile_runs_it():
    assert "python examples/demo.py" in (ROOT / "Makefile").read_text()
