"""The arguments of `shardwise checkpoint`. Parsing them loads neither the commands nor TensorStore."""

from argparse import ArgumentParser

from shardwise.launch.subcommand import add_command


def add_checkpoint_arguments(parser: ArgumentParser) -> None:
    """Add the subcommands to the parser of `shardwise checkpoint`."""
    commands = parser.add_subparsers(dest="checkpoint_command", required=True, metavar="COMMAND")
    listing = add_command(commands, "ls", "list the checkpoints in a folder", "shardwise checkpoint ls s3://bucket/run")
    listing.add_argument("path", help="a folder, or a URL such as s3://bucket/run")
    inspect = add_command(
        commands, "inspect", "print what a checkpoint holds", "shardwise checkpoint inspect run/step-100"
    )
    inspect.add_argument("path", help="the checkpoint")
    check = add_command(
        commands,
        "verify",
        "read every byte of checkpoints, and compare it with its checksum",
        "shardwise checkpoint verify run/step-100 run/step-200",
    )
    check.add_argument("paths", nargs="+", help="the checkpoints")
    diff = add_command(
        commands,
        "diff",
        "compare two checkpoints, bit for bit",
        "shardwise checkpoint diff run/step-100 run/step-200",
    )
    diff.add_argument("first", help="a checkpoint")
    diff.add_argument("second", help="another checkpoint")
    export = add_command(
        commands,
        "export",
        "write the arrays of a checkpoint to a safetensors file",
        "shardwise checkpoint export run/step-100 model.safetensors",
    )
    export.add_argument("path", help="the checkpoint")
    export.add_argument("file", help="the safetensors file")
    importing = add_command(
        commands,
        "import",
        "make a checkpoint of safetensors files or of an Orbax checkpoint",
        "shardwise checkpoint import model.safetensors pretrained",
    )
    importing.add_argument("sources", nargs="+", help="safetensors files, or the folder of one Orbax checkpoint")
    importing.add_argument("path", help="where the checkpoint will be")
