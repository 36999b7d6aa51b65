"""The command ``litz``: ``litz doctor`` says what this machine lacks, ``litz demo`` tries Litz."""

from __future__ import annotations

import argparse
import runpy
import sys

TOOLS = ("doctor", "demo")


def main() -> None:
    """Run the tool that the command line names, with the arguments behind it."""
    parser = argparse.ArgumentParser(prog="litz", description=__doc__)
    parser.add_argument("tool", choices=TOOLS)
    tool = parser.parse_args(sys.argv[1:2]).tool
    sys.argv[:2] = [f"litz {tool}"]
    runpy.run_module(f"litz.tools.{tool}", run_name="__main__")


if __name__ == "__main__":
    main()
