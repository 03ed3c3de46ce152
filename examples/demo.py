"""The demo: train, explain, save, be killed, resume on another mesh, and compare every loss. `make demo` runs it.

1. A process trains the GPT of `gpt.py` on 8 virtual devices, 4×2, and is killed by SIGKILL in the middle.
2. A second one resumes from its latest checkpoint, on another mesh of 4 devices, and trains to the end.
3. A third one trains on one device without interruption. Every loss of the first two equals its losses.
"""

import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from shutil import rmtree

import numpy as np
from training_run import plot

from shardwise import checkpoints

GPT = Path(__file__).with_name("gpt.py")
FIRST_MESH, SECOND_MESH = "data=4,model=2", "data=1,model=4"
TOLERANCE = 1e-4  # of losses, relative: sums over devices have another order


def start(folder, mesh, steps, save_every):
    """Start a process that trains, and continues from the latest checkpoint in the folder."""
    options = ["--folder", folder, "--mesh", mesh, "--steps", steps, "--save-every", save_every, "--log-every", 10]
    command = [sys.executable, GPT, *options]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)


def read_losses(folder):
    """Return the losses of all steps up to the latest checkpoint."""
    manager = checkpoints.Manager(folder / "checkpoints", read_only=True)
    latest = folder / "checkpoints" / f"step-{manager.latest()}"
    return checkpoints.read_manifest(latest).metadata["metadata"]["losses"]


def echo(lines, until=None):
    """Print the lines of a process, up to the first one that contains `until`."""
    for line in lines:
        print(f"    {line}", end="", flush=True)
        if until is not None and until in line:
            return


def compare(losses, expected):
    """Return the largest relative difference of losses.

    Raises:
        AssertionError: if it is larger than the tolerance.
    """
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    return np.max(np.abs(np.divide(losses, expected) - 1))


def main(arguments=None):
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-after", type=int, help="the step after which the first process is killed")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    options = parser.parse_args(arguments)
    kill_after = options.kill_after or options.steps // 2
    rmtree(options.folder, ignore_errors=True)
    begin, resumed, uninterrupted = time.perf_counter(), options.folder / "resumed", options.folder / "one-device"

    print(f"1. Train on mesh {FIRST_MESH}, and kill the process after step {kill_after}:")
    with start(resumed, FIRST_MESH, options.steps, options.save_every) as first:
        echo(first.stdout, until=f"step {kill_after:4}/")
        first.send_signal(signal.SIGKILL)
    if first.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the first process ended by itself, with exit code {first.returncode}")
    saved = len(read_losses(resumed))
    print(f"    killed by SIGKILL; the latest checkpoint is that of step {saved}")

    print(f"2. Resume on mesh {SECOND_MESH}:")
    with start(resumed, SECOND_MESH, options.steps, options.save_every) as second:
        echo(second.stdout)
    print("3. Train without interruption on one device:")
    with start(uninterrupted, "data=1,model=1", options.steps, options.save_every) as third:
        echo(third.stdout)
    if second.returncode or third.returncode:
        raise RuntimeError(f"training failed, with exit codes {second.returncode} and {third.returncode}")

    losses, expected = read_losses(resumed), read_losses(uninterrupted)
    difference = compare(losses, expected)
    plot({"1 device": expected, f"{FIRST_MESH}, then {SECOND_MESH}": losses}, options.folder / "loss.png", "the demo")
    print(
        f"all {len(losses)} losses equal those on one device (largest relative difference {difference:.1e}, tolerance "
        f"{TOLERANCE}); {time.perf_counter() - begin:.0f} s"
    )
    print(f"plan: {resumed / 'plan.html'}")
    print(f"loss curves: {options.folder / 'loss.png'}")
    print(f"checkpoints: {resumed / 'checkpoints'}")
    print(f"sample text of the model: python examples/sampling.py --folder {resumed}")
    return losses, expected


if __name__ == "__main__":
    main()
