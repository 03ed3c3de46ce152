"""A training run: its progress, checkpoints, plan, trace and loss curve.

The examples share this module, so that each of them is about its model. It uses public functions only: copy it, and
change it, for a program of your own.
"""

import time
from contextlib import contextmanager, nullcontext
from itertools import chain
from shutil import rmtree

import numpy as np
from command_line import make_mesh, parse
from matplotlib.figure import Figure

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints, monitoring, profiler
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

TRACED_STEP = 2  # of a run with --trace; the first one compiles


class Run:
    """A training run with the options of its command line.

    Attributes:
        name: the name of the example.
        mesh: the mesh.
        options: the parsed command line.
        folder: where checkpoints, plan, trace and loss curve are written.
    """

    def __init__(self, name, mesh, options):
        self.name, self.mesh, self.options, self.folder = name, mesh, options, options.folder
        self.is_first_process = sw.process_index() == 0
        if options.fresh and self.is_first_process and self.folder.exists():
            rmtree(self.folder / "checkpoints", ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_command_line(cls, name, description, arguments=None, *, axes, steps, add_arguments=lambda parser: None):
        """Return the run that the arguments describe, which are by default those of the process.

        Args:
            name: the name of the example.
            description: its docstring.
            arguments: the command line, as a list of strings.
            axes: the names of the mesh axes.
            steps: the number of steps, if the command line has none.
            add_arguments: a function that adds options of the example to the `ArgumentParser`.

        Raises:
            ShardingError: if the mesh has other axes than these, or does not fit the devices.
        """
        options = parse(name, description, arguments, axes, steps, add_arguments)
        return cls(name, make_mesh(options.mesh, options.devices, axes), options)

    def train(self, step, state, batches, *, items, unit="tokens"):
        """Train to the last step, from the latest checkpoint if there is one.

        Args:
            step: a jitted function from a state and a batch to the next state and the loss.
            state: the state at step 0.
            batches: a `data.BatchIterator` without an end, which continues where the checkpoint was saved.
            items: the number of tokens, or whatever `unit` says, of a batch.
            unit: what is counted per second.

        Returns:
            The state and the losses of all steps, those before the checkpoint too.

        Raises:
            CheckpointMismatch: if the checkpoint in the folder is of another model; it lists the differences.
            DataStateMismatch: if it was saved with other data.
        """
        last, every = self.options.steps, self.options.save_every
        with batches, checkpoints.Manager(self.folder / "checkpoints", every_steps=every, keep_last=2) as manager:
            first, losses = 0, []
            if manager.latest() is not None:
                restored = manager.restore(state)
                first, state, losses = restored.step, restored.tree, restored.metadata["losses"]
                batches.restore(restored.metadata["data"])
                self.print(f"continue after step {first} of {self.folder / 'checkpoints'}")
            if first >= last:
                self.print(f"all {last} steps are done: pass more --steps, or --fresh to begin again")
                return state, losses
            first_batch = next(batches)
            plan = self.write_plan(step, state, first_batch)
            busy = sum(each.flops for each in plan.timeline.steps) / peak_flops(plan, self.mesh)  # seconds at the peak
            with count_compiles() as compiled:
                for number, batch in zip(range(first, last), chain([first_batch], batches), strict=False):
                    with self.trace(number - first):
                        start = time.perf_counter()
                        state, loss = step(state, batch)
                        losses.append(float(loss))  # waits for the devices
                        seconds = time.perf_counter() - start
                    is_last = number + 1 == last
                    metadata = {"losses": losses, "data": batches.state()}
                    manager.save(number + 1, state, metadata=metadata, force=is_last)
                    if is_last or (number + 1) % self.options.log_every == 0:
                        self.print(
                            f"step {number + 1:4}/{last}  loss {losses[-1]:.4f}  {1e3 * seconds:7.1f} ms  "
                            f"{items / seconds:9,.0f} {unit}/s  MFU {100 * busy / seconds:5.1f}%  "
                            f"compiles {len(compiled)}"
                        )
                    sw.distributed.report_step(number)
                    if manager.stopping:  # a SIGTERM came, and this step is saved
                        break
        if self.is_first_process:
            plot({self.name: losses}, self.folder / "loss.png", f"{self.name} on mesh {self.mesh.abstract}")
        self.print(f"loss {losses[0]:.4f} → {losses[-1]:.4f}; files: {', '.join(self.files())}")
        return state, losses

    def write_plan(self, step, state, batch):
        """Write the plan of a step as a page, print its totals, and return it."""
        plan = step.lower(state, batch).plan
        self.print(
            f"{plan.name} on mesh {self.mesh.abstract}: {plan.wire_bytes / 1e3:,.0f} kB sent and at most "
            f"{plan.peak_bytes / 1e6:,.1f} MB held per device"
        )
        for row in plan.totals():
            self.print(f"  {row.count:3} {row.kind} over {', '.join(row.axes)}: {row.sent / 1e3:,.0f} kB")
        if self.is_first_process:
            plan.write_html(self.folder / "plan.html")
        return plan

    def trace(self, number):
        """Return a context that profiles the step, if the command line asks for a trace."""
        if not self.options.trace or number != TRACED_STEP:
            return nullcontext()
        return profiler.trace(self.folder / "trace")

    def files(self):
        """Return the paths of what the run has written."""
        return [str(path) for path in sorted(self.folder.iterdir())]

    def print(self, text):
        """Print a line, in one of the processes."""
        if self.is_first_process:
            print(text, flush=True)


def peak_flops(plan, mesh):
    """Return the flops per second that one device of the mesh can do in float32 products.

    They are published for accelerators. Virtual devices share the cores of the CPU: time a product on all of them.
    """
    if plan.chip.name != "cpu":
        return plan.chip.f32_flops
    matrices = sw.device_put(np.ones((mesh.size, 512, 512), np.float32), NamedSharding(mesh, P(mesh.axis_names)))
    product = sw.jit(lambda x: jnp.matmul(x, x))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        product(matrices).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * 512**3 / min(seconds)


@contextmanager
def count_compiles():
    """Return the list to which the durations of all compilations inside the block are appended."""
    durations = []

    def listen(event, seconds, **metadata):
        if event == "/jax/core/compile/backend_compile_duration":
            durations.append(seconds)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield durations
    finally:
        monitoring.unregister_event_duration_listener(listen)


def plot(curves, file, title):
    """Plot loss curves, each with its name."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss", title=title)
    for index, (name, losses) in enumerate(curves.items()):
        axes.plot(range(1, len(losses) + 1), losses, linewidth=4 / 3**index, label=name)  # equal curves stay visible
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
