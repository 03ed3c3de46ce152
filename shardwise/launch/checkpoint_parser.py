"""The arguments of `shardwise checkpoint`. Parsing them loads neither the commands nor TensorStore."""

from argparse import ArgumentParser


def add_checkpoint_arguments(parser: ArgumentParser) -> None:
    """Add the subcommands to the parser of `shardwise checkpoint`."""
    commands = parser.add_subparsers(dest="checkpoint_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("ls", help="list the checkpoints in a folder")
    listing.add_argument("path", help="a folder, or a URL such as s3://bucket/run")
    inspect = commands.add_parser("inspect", help="print what a checkpoint holds")
    inspect.add_argument("path", help="the checkpoint")
    check = commands.add_parser("verify", help="read every byte of checkpoints, and compare it with its checksum")
    check.add_argument("paths", nargs="+", help="the checkpoints")
    diff = commands.add_parser("diff", help="compare two checkpoints, bit for bit")
    diff.add_argument("first")
    diff.add_argument("second")
    export = commands.add_parser("export", help="write the arrays of a checkpoint to a safetensors file")
    export.add_argument("path", help="the checkpoint")
    export.add_argument("file", help="the safetensors file")
    importing = commands.add_parser("import", help="make a checkpoint of safetensors files or of an Orbax checkpoint")
    importing.add_argument("sources", nargs="+", help="safetensors files, or the folder of one Orbax checkpoint")
    importing.add_argument("path", help="where the checkpoint will be")
