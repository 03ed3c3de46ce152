"""The Python code of the documents runs, and prints the output that they show; the pages of the site are complete."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.processes.environment import find_processes

ROOT = Path(__file__).resolve().parents[1]


def code_of(document: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL))


# The launcher runs the code of this page.
MULTI_PROCESS = "docs/multi-process.md"
# The code of these pages changes the process: it registers ops, sets the number of devices, or what `import jax` means.
OWN_PROCESS = (
    "CONTRIBUTING.md",
    "docs/config.md",
    "docs/ecosystem.md",
    "docs/explicit.md",
    "docs/inside-jax.md",
    "docs/installation.md",
    "docs/own-ops.md",
    "docs/pallas.md",
)
NEEDS_JAX = ("docs/inside-jax.md",)
# Models with many layers or gradients, which take long to compile; searches that plan many alternatives.
SLOW = (
    "docs/attention.md",
    "docs/autoshard.md",
    "docs/mixture-of-experts.md",
    "docs/pipeline.md",
    "docs/vocabulary.md",
)
DOCUMENTS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW) + [pytest.mark.jax] * (name in NEEDS_JAX))
    for name in ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
    if name != MULTI_PROCESS and "```python" in (ROOT / name).read_text()
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_code_runs_and_prints_the_shown_output(document, tmp_path, monkeypatch, capsys):
    script = tmp_path / "mlp.py"
    script.write_text(code_of(document))
    if document in OWN_PROCESS:
        run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr
        printed = run.stdout
    else:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(script))
        printed = capsys.readouterr().out
    for block in re.findall(r"```\n(\w+(?: on mesh|: \d+ devices).*?)\n```", (ROOT / document).read_text(), re.DOTALL):
        shown = [" ".join(line.split()) for line in block.splitlines()]
        printed_lines = [" ".join(line.split()) for line in printed.splitlines()]
        missing = [line for line in shown if line not in printed_lines]
        assert not missing, "\n".join([f"{document} shows lines that its code does not print:", *missing, "", printed])


def blocks_of(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def run_processes(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **variables}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=folder, env=environment
    )


@pytest.mark.slow
def test_multi_process_code_runs_under_the_launcher(tmp_path):
    (tmp_path / "train.py").write_text(code_of(MULTI_PROCESS))
    (command,) = [line for line in (ROOT / MULTI_PROCESS).read_text().splitlines() if line.endswith("4 train.py")]
    run = run_processes([sys.executable, "-m", *command.split()], tmp_path)
    assert run.returncode == 0, run.stderr
    losses = [float(text) for text in re.findall(r"^\[0\] step \d: loss ([\d.]+)$", run.stdout, re.MULTILINE)]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)


# Stands for Slurm: starts the command in two tasks on one node.
SRUN = """#!{python}
import os, subprocess, sys
command = [sys.executable if word == "python" else word for word in sys.argv[1:]]
slurm = {{"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "node[7]", "SLURM_NTASKS": "2"}}
tasks = [
    subprocess.Popen(command, env={{**os.environ, **slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}})
    for rank in range(2)
]
sys.exit(max(task.wait(timeout=200) for task in tasks))
"""


@pytest.mark.slow
def test_slurm_script_runs_with_a_fake_srun(tmp_path):
    job, with_launcher = blocks_of(MULTI_PROCESS, "bash")
    (tmp_path / "job.sh").write_text(job)
    (tmp_path / "train.py").write_text(code_of(MULTI_PROCESS))
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(0o755)
    run = run_processes(
        ["bash", "job.sh"], tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}", SHARDWISE_NUM_CPU_DEVICES="2"
    )
    assert run.returncode == 0, run.stderr
    assert "step 2: loss" in run.stdout
    assert subprocess.run(["bash", "-n"], input=with_launcher, text=True, timeout=60, check=False).returncode == 0


def test_kubernetes_manifest_sets_the_variables_that_are_read():
    (manifest,) = blocks_of(MULTI_PROCESS, "yaml")
    service, job = manifest.split("---")
    variables = dict(re.findall(r'- name: (JAX_\w+)\n\s+value: "?([^"\n]+)"?', job))
    name = re.search(r"kind: Job\nmetadata:\n  name: (\w+)", job)[1]
    subdomain = re.search(r"subdomain: (\w+)", job)[1]
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3", "HOSTNAME": f"{name}-3"}
    found = find_processes({**variables, **pod})
    assert (found.method, found.process_id) == ("k8s", 3)
    assert {found.num_processes} == {int(count) for count in re.findall(r"(?:completions|parallelism): (\d+)", job)}
    assert found.coordinator_address == f"{name}-0.{subdomain}:55527"
    assert f"name: {subdomain}\n" in service and f"job-name: {name}\n" in service


def test_contributing_names_files_and_tests_that_exist():
    names = re.findall(r"`([^`\n]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    paths = [name for name in names if re.fullmatch(r"(?:shardwise|tests|docs|\.github)/[\w./*-]+", name)]
    assert len(paths) > 30
    assert [path for path in paths if not list(ROOT.glob(path))] == []
    tests = {name for name in names if re.fullmatch(r"test_\w+", name)}
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(tests) > 10
    assert [name for name in tests if f"def {name}(" not in source] == []


def test_links_exist():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+?)\)", document.read_text()):
            if link.startswith("https://"):
                continue
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
