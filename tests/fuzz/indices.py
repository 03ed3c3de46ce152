"""Run many random programs of index ops on devices, and compare them with numpy.

    python -m tests.fuzz.indices --cases 5000 --seed 0 [--seconds 600]

A seed determines its program: `--cases 1 --seed S` repeats one.
"""

import sys

from tests.fuzz.campaign import campaign_parser, run_campaign
from tests.fuzz.index_programs import check, random_program


def main(arguments: list[str] | None = None) -> int:
    options = campaign_parser("tests.fuzz.indices", __doc__).parse_args(arguments)
    return run_campaign(options, [(random_program, check)])


if __name__ == "__main__":
    sys.exit(main())
