"""Go on from the last checkpoint of a job that has ended: a new job with the same code and arguments.

shunter resume train                    from the latest job of that name
shunter resume train -- --epochs 20     with another argument

The new job begins with a copy of what the old one wrote to SM_CHECKPOINT_DIR, so that the old one can be
deleted once the new one has started. With --checkpoints URI both use that place.
"""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.commands import rerun
from shunter.cli.parser import Parser

add_arguments = rerun.add_repeat_arguments


def parse(parser: Parser, argv: list[str]) -> Namespace:
    args = rerun.parse(parser, argv)
    args.from_checkpoint = True
    return args


run = rerun.run
