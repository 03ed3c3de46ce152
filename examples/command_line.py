"""The command line of the examples, and the mesh that it describes."""

from argparse import ArgumentParser
from pathlib import Path

import shardwise as sw
from shardwise.errors import ShardingError


def parse(name, description, arguments, axes, steps, add_arguments):
    """Return the options of the command line."""
    parser = ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--devices", type=int, help="the number of devices: 1 to 8 virtual ones; by default all")
    parser.add_argument("--mesh", help=f"the mesh, such as {axes[0]}=2,{axes[-1]}=4; by default one of all devices")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--folder", type=Path, default=Path("build") / name, help="where the files of the run are")
    parser.add_argument("--fresh", action="store_true", help="delete the checkpoints of the folder, and begin again")
    parser.add_argument("--trace", action="store_true", help="write a profile of one step to the folder")
    add_arguments(parser)
    return parser.parse_args(arguments)


def make_mesh(text, devices, axes):
    """Return the mesh that `text` describes, such as `data=4,model=2`; by default, one of the number of devices.

    Raises:
        ShardingError: if the text has other axes than these, or if the mesh does not have as many devices.
    """
    if text is None:
        count = len(sw.devices()) if devices is None else devices
        second = 2 if count % 2 == 0 and count > 2 and len(axes) > 1 else 1
        return sw.make_mesh((count // second, second)[: len(axes)], axes)
    sizes = dict(axis.partition("=")[::2] for axis in text.split(","))
    if set(sizes) != set(axes) or not all(size.isdigit() for size in sizes.values()):
        raise ShardingError(f"--mesh {text}: write a size for each axis, such as {','.join(f'{a}=2' for a in axes)}")
    mesh = sw.make_mesh([int(size) for size in sizes.values()], list(sizes))
    if devices not in (None, mesh.size):
        raise ShardingError(f"--mesh {text} has {mesh.size} devices, but --devices is {devices}")
    return mesh
