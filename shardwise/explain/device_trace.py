"""Read the runs of compiled programs from an XLA profile: which kernel ran when, on which device.

The input is what `shardwise.profiler.trace`, or JAX's, has written. A GPU is a plane of the profile with a line per
stream. Events of CPU devices are on the lines of host threads; they state the device and the run. The profile also has
the optimized HLO of the programs.
"""

import gzip
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, final

from shardwise.base._jaxlib import ProfileData, hlo_module_text
from shardwise.base.regular_file import read_regular_file
from shardwise.errors import ProfileError
from shardwise.explain.hlo_module import HloModule
from shardwise.runtime.xplane import module_protos

_LARGEST_PROFILE = 1 << 29  # bytes; a step has tens of megabytes
_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_PLACES = ("*", "*/*", "plugins/profile/*/*")  # the folder of a run, of all runs, or that of `profiler.trace`
_GPU_PLANE = re.compile(r"/device:GPU:(\d+)")
_CPU_PLANE = "/host:CPU"
_HOW = "Record one: `with shardwise.profiler.trace(folder): jax.block_until_ready(step(*args))`."


@final
@dataclass(frozen=True)
class DeviceEvent:
    """One kernel on a device.

    Attributes:
        kernel: the name of the kernel.
        instruction: the name of the HLO instruction that launched it, or of a command buffer: a CUDA graph with the
            kernels of several instructions.
        node: the node of the CUDA graph; 0 if there is none.
        start: seconds from an arbitrary time.
        seconds: its duration.
    """

    kernel: str
    instruction: str
    node: int
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """The time of its end."""
        return self.start + self.seconds


@final
@dataclass(frozen=True)
class DeviceRun:
    """One run of a program on one device: its events, by start."""

    device: int
    events: tuple[DeviceEvent, ...]

    @property
    def seconds(self) -> float:
        """The time from the start of the first kernel to the end of the last."""
        return max(event.end for event in self.events) - self.events[0].start


@final
@dataclass(frozen=True)
class ProgramTrace:
    """The runs of a program in a profile.

    Attributes:
        name: the name of its HLO module.
        hlo: its optimized HLO, as text or as a serialized `HloModuleProto`.
        device_kind: the kind of the devices, as PJRT calls it; "cpu" for CPUs.
        runs: its runs, on all devices.
    """

    name: str
    hlo: str | bytes
    device_kind: str
    runs: tuple[DeviceRun, ...]

    @cached_property
    def text(self) -> str:
        """Its optimized HLO. Raises ProfileError if it cannot be read."""
        if isinstance(self.hlo, str):
            return self.hlo
        try:
            return hlo_module_text(self.hlo)
        except RuntimeError as error:
            raise ProfileError(f"the HLO of {self.name!r} in the profile cannot be read: {error}. {_HOW}") from error

    @cached_property
    def module(self) -> HloModule:
        """Its optimized HLO, parsed. Raises ProfileError if it has no entry computation."""
        text = self.text
        try:
            return HloModule(text)
        except ValueError as error:
            raise ProfileError(f"the HLO of {self.name!r} cannot be read: {error}") from error

    @property
    def device_seconds(self) -> float:
        """The time of all runs."""
        return sum(run.seconds for run in self.runs)

    @cached_property
    def typical(self) -> DeviceRun:
        """The run of the first device with the median time; of an even number, the faster one of the middle."""
        first = min(run.device for run in self.runs)
        runs = sorted((run for run in self.runs if run.device == first), key=lambda run: run.seconds)
        return runs[(len(runs) - 1) // 2]


@final
@dataclass(frozen=True)
class DeviceTrace:
    """The programs that ran while a profile was recorded, by device time, the longest first."""

    path: Path
    programs: tuple[ProgramTrace, ...]

    def program(self, name: str = "") -> ProgramTrace:
        """Return the program of a name; by default, the one with the most device time.

        Raises:
            ProfileError: if there is none of this name.
        """
        for program in self.programs:
            if name in ("", program.name):
                return program
        names = ", ".join(dict.fromkeys(repr(program.name) for program in self.programs))
        raise ProfileError(
            f"the profile {str(self.path)!r} has no run of a program {name!r}, but of {names}. Record a call of "
            "the same jitted function, or name one of these."
        )


def read_trace(path: str | PathLike[str], hlo: str | PathLike[str] | None = None) -> DeviceTrace:
    """Read the runs of programs from a profile.

    Args:
        path: a file `*.xplane.pb`, which may be compressed by gzip, or the folder that `profiler.trace` wrote to. Of
            several profiles in a folder, the newest counts.
        hlo: a file with the optimized HLO of a program as text (`compiled.as_text()`), if the profile has no HLO.

    Raises:
        ProfileError: if there is no profile, or if it cannot be read or used.
    """
    file = _profile_file(Path(path))
    serialized = _read(file)
    try:
        planes = list(ProfileData.from_serialized_xspace(serialized).planes)
        protos = module_protos(serialized)
    except (RuntimeError, ValueError) as error:
        raise ProfileError(
            f"{str(file)!r} is not a profile of XLA, or not a complete one: it must be a file *.xplane.pb. {_HOW}"
        ) from error
    device_kind, runs = _device_runs(planes)
    if not runs:
        names = ", ".join(plane.name for plane in planes) or "none"
        raise ProfileError(
            f"the profile {str(file)!r} has no kernel of a compiled program on a GPU or CPU (planes: {names}). Call "
            f"the function while the profile is recorded, and wait for its results. {_HOW}"
        )
    texts = {} if hlo is None else _hlo_text(Path(hlo))
    programs = []
    for key, each in runs.items():
        name = key.rpartition("(")[0]
        module = protos.get(key) or texts.get(name)
        if module is not None:
            programs.append(ProgramTrace(name, module, device_kind, tuple(each)))
    if not programs:
        raise ProfileError(
            f"the profile {str(file)!r} does not contain the HLO of {', '.join(runs)}. Pass it as a file, which "
            "`step.lower(*args).compile().as_text()` returns, or record the profile with `enable_hlo_proto`."
        )
    return DeviceTrace(file, tuple(sorted(programs, key=lambda program: -program.device_seconds)))


def _hlo_text(file: Path) -> dict[str, str]:
    """Return the text of an HLO module by its name."""
    text = _read(file).decode(errors="replace")
    header = re.match(r"HloModule ([\w.\-]+)", text)
    if header is None:
        raise ProfileError(f"{str(file)!r} is not HLO: it must begin with `HloModule`, as `compiled.as_text()` does")
    return {header[1]: text}


def _profile_file(path: Path) -> Path:
    """Return the file of a profile: the path itself, or the newest one in a folder."""
    if not path.is_dir():
        if not path.exists():
            raise ProfileError(f"there is no profile {str(path)!r}. {_HOW}")
        return path
    try:
        times = {
            file: file.stat().st_mtime
            for pattern in _PLACES
            for file in path.glob(pattern)
            if file.name.endswith(_SUFFIXES)
        }
    except OSError as error:
        raise ProfileError(f"the folder {str(path)!r} cannot be searched: {error.strerror}") from error
    if not times:
        raise ProfileError(f"the folder {str(path)!r} has no profile of XLA, *.xplane.pb. {_HOW}")
    return max(times, key=lambda file: (times[file], file.name))


def _read(file: Path) -> bytes:
    """Return the contents of a file, decompressed if it is compressed.

    Raises:
        ProfileError: if it cannot be read, or is too large.
    """
    try:
        content = read_regular_file(file, _LARGEST_PROFILE)
        if file.name.endswith(".gz"):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_LARGEST_PROFILE + 1)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{str(file)!r} cannot be read: {reason}. A profile of a few steps is enough.") from error
    if len(content) > _LARGEST_PROFILE:
        raise ProfileError(f"{str(file)!r} has more than {_LARGEST_PROFILE:,} bytes. Profile a few steps only.")
    return content


def _device_runs(planes: Sequence[Any]) -> tuple[str, dict[str, list[DeviceRun]]]:
    """Return the kind of the devices, and the runs of each program, by name and id: `step(3977)`."""
    runs: dict[str, list[DeviceRun]] = defaultdict(list)
    device_kind = "cpu"
    for plane in planes:
        if match := _GPU_PLANE.fullmatch(plane.name):
            device_kind = str(dict(plane.stats).get("gpu_device_name", "gpu"))
            for program, events in _gpu_events(plane).items():
                runs[program] += [DeviceRun(int(match[1]), each) for each in _split_runs(events)]
    if runs:
        return device_kind, runs
    for plane in planes:
        if plane.name == _CPU_PLANE:
            for (program, device, _), events in _cpu_events(plane).items():
                runs[program].append(DeviceRun(device, tuple(sorted(events, key=lambda event: event.start))))
    return "cpu", runs


def _gpu_events(plane: Any) -> dict[str, list[DeviceEvent]]:
    """Return the events of each program on a GPU, by start."""
    events: dict[str, list[DeviceEvent]] = defaultdict(list)
    for event, stats in _kernels(plane.lines):
        node = int(stats.get("cuda_graph_node_id") or 0)
        events[_program(stats)].append(_event(event, stats, node))
    return {program: sorted(each, key=lambda event: event.start) for program, each in events.items()}


def _cpu_events(plane: Any) -> dict[tuple[str, int, int], list[DeviceEvent]]:
    """Return the events of CPU devices by program, device and run."""
    events: dict[tuple[str, int, int], list[DeviceEvent]] = defaultdict(list)
    for event, stats in _kernels(plane.lines):
        key = _program(stats), int(stats.get("device_ordinal", 0)), int(stats.get("run_id", 0))
        events[key].append(_event(event, stats, 0))
    return events


def _kernels(lines: Iterable[Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the events of kernels with their stats."""
    for line in lines:
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats and "hlo_module" in stats:
                yield event, stats


def _program(stats: Mapping[str, Any]) -> str:
    module = re.sub(r"\(\d+\)$", "", str(stats["hlo_module"]))
    return f"{module}({stats.get('program_id', 0)})"


def _event(event: Any, stats: Mapping[str, Any], node: int) -> DeviceEvent:
    return DeviceEvent(event.name, str(stats["hlo_op"]), node, event.start_ns * 1e-9, event.duration_ns * 1e-9)


def _split_runs(events: Sequence[DeviceEvent]) -> Iterator[tuple[DeviceEvent, ...]]:
    """Split the events of a GPU into runs, which the profile does not state.

    A kernel outside of loops runs once per run, so the rarest kernels mark the runs. A run begins at the longest idle
    time between the last mark of a run and the first mark of the next.
    """
    keys = [(event.instruction, event.node, event.kernel) for event in events]
    counts = Counter(keys)
    rarest = min(counts.values())
    marks = [index for index, key in enumerate(keys) if counts[key] == rarest]
    per_run = len(marks) // rarest
    start = 0
    for run in range(1, rarest):
        last, first = marks[run * per_run - 1], marks[run * per_run]
        end = max(range(last + 1, first + 1), key=lambda index: events[index].start - events[index - 1].end)
        yield tuple(events[start:end])
        start = end
    yield tuple(events[start:])
