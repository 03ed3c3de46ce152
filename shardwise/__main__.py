"""`python -m shardwise`: the command line of `launch/command_line.py`."""

import sys

from shardwise.launch.command_line import main

if __name__ == "__main__":
    sys.exit(main())
