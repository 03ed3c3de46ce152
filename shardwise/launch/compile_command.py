"""`shardwise compile`: fill the compilation cache before a job has its devices."""

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.base.lazy import lazy_module

if TYPE_CHECKING:
    import shardwise as sw
    from shardwise.experimental import topologies
    from shardwise.jax_modules import install
    from shardwise.launch import command_errors, load_target
else:  # these load the API, which is unnecessary for the parser
    sw = lazy_module("shardwise")
    topologies = lazy_module("shardwise.experimental.topologies")
    install = lazy_module("shardwise.jax_modules.install")
    command_errors = lazy_module("shardwise.launch.command_errors")
    load_target = lazy_module("shardwise.launch.load_target")

_DESCRIPTION = """\
Compile functions, and write their executables to the compilation cache, from which a job loads them if its
compilation_cache_dir is the same. TARGET is FILE.py:FUNCTION or package.module:FUNCTION. The same file has a function
`arguments` that returns the arguments of FUNCTION, a tuple of ShapeDtypeStructs with shardings. Name the jitted
function that the job calls: its options, such as donated arguments, are part of the program.

With --topology, the devices need not be present, only the plugin of their platform. A machine without GPUs cannot tune
their kernels: XLA chooses them by its own model. Without --topology, the devices of this machine are used; on CPU, as
many virtual devices as the mesh has. A CPU program of several processes cannot be compiled in advance.
"""
_HIT, _WRITTEN = "/jax/compilation_cache/cache_hits", "/shardwise/compilation_cache/written"


def add_compile_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `shardwise compile`."""
    parser.description, parser.formatter_class = _DESCRIPTION, RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="FILE.py:FUNCTION or module:FUNCTION")
    parser.add_argument("--mesh", required=True, metavar="AXES", help="the mesh, such as data=8,model=4")
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="a folder, or a URL such as s3://bucket/cache; by default the setting compilation_cache_dir",
    )
    parser.add_argument(
        "--platform", metavar="NAME", help="the platform, such as cpu, cuda or tpu; by default this machine's"
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="devices that need not be present: 4x1x8 for four hosts of eight GPUs, or v5e:4x4 for TPUs",
    )
    parser.add_argument(
        "--target-config", type=Path, metavar="FILE", help="the GPU in XLA's text format, if this machine has none"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the function `arguments`"
    )
    parser.add_argument("--arguments", default="arguments", metavar="NAME", help="another name of that function")


def run_compile(parsed: Namespace) -> int:
    """Run `shardwise compile`, and return the exit code."""
    return command_errors.run_command("compile", partial(_compile, parsed))


def _compile(parsed: Namespace) -> None:
    axes = load_target.parse_mesh_text(parsed.mesh)
    choice: dict[str, Any] = {}
    for name, values in load_target.parse_variables(parsed.set).items():
        if len(values) > 1:
            raise load_target.CommandError(f"--set {name} can be given once")
        choice[name] = values[0]
    if parsed.cache:
        sw.config.update("compilation_cache_dir", parsed.cache)
    if not sw.config.compilation_cache_dir:
        raise load_target.CommandError("there is no compilation cache: write --cache DIR, or set compilation_cache_dir")
    sw.config.update("persistent_cache_min_compile_time_secs", 0.0)
    mesh = _mesh(parsed, axes)
    install.as_jax()
    for target in parsed.targets:
        _compile_target(target, parsed.arguments, {**choice, "mesh": mesh}, _compiler_options(parsed, mesh))


def _mesh(parsed: Namespace, axes: Any) -> Any:
    """Return the mesh of the devices to compile for."""
    sizes, names = axes.axis_sizes, axes.axis_names
    if parsed.topology is None:
        if parsed.target_config is not None:
            raise load_target.CommandError(
                "--target-config needs --topology: without it, the devices of this machine are used"
            )
        if parsed.platform is not None:
            sw.config.update("platforms", parsed.platform)
        sw.config.update("num_cpu_devices", axes.size)
        devices = list(sw.devices())
    else:
        devices = _topology_devices(parsed)
    if len(devices) != axes.size:
        raise load_target.CommandError(
            f"--mesh {parsed.mesh} has {axes.size} devices, and there are {len(devices)} ({devices[0].device_kind}). "
            "The device ids of a job are part of its programs, so the mesh must have all devices of the job"
        )
    return topologies.make_mesh(topologies.TopologyDescription(devices), sizes, names)


def _topology_devices(parsed: Namespace) -> list[Any]:
    platform = parsed.platform or ("tpu" if ":" in parsed.topology else "cuda")
    sw.config.update("platforms", "cpu")  # a default platform without devices would be reported
    if ":" in parsed.topology:
        return topologies.get_topology_desc(parsed.topology, platform).devices
    options = {"topology": parsed.topology}
    if parsed.target_config is not None:
        options["target_config"] = parsed.target_config.read_text()
    return topologies.get_topology_desc("", platform, **options).devices


def _compiler_options(parsed: Namespace, mesh: Any) -> dict[str, Any] | None:
    """Return XLA options: its autotuner fails without a GPU."""
    is_absent_gpu = parsed.topology is not None and mesh.devices.flat[0].platform == "gpu"
    return {"xla_gpu_autotune_level": 0} if is_absent_gpu else None


def _compile_target(text: str, arguments: str, choice: dict[str, Any], options: dict[str, Any] | None) -> None:
    target = load_target.load_target(text, arguments)
    target.check(list(choice))
    args = target.call_arguments(choice)
    function = target.function if hasattr(target.function, "lower") else sw.jit(target.function)
    events: list[str] = []
    listener = lambda event, **_: events.append(event)  # noqa: E731
    sw.monitoring.register_event_listener(listener)
    start = time.perf_counter()
    try:
        function.lower(*args).compile(compiler_options=options)
    finally:
        sw.monitoring.unregister_event_listener(listener)
    seconds = time.perf_counter() - start
    if _WRITTEN in events:
        print(f"{text}: compiled in {seconds:.1f} s, and written to {sw.config.compilation_cache_dir}", flush=True)
    elif _HIT in events:
        print(f"{text}: in {sw.config.compilation_cache_dir} already", flush=True)
    else:
        raise load_target.CommandError(
            f"{text}: compiled in {seconds:.1f} s, but not written to the cache. Programs with callbacks cannot be: "
            "their executables contain addresses of a process. Messages above give other reasons"
        )
