"""`python -m jitpy doctor` and `python -m jitpy build`."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m jitpy")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="say what is on this machine and what jitpy can use of it")
    commands.add_parser("build", help="build the native part now, rather than at the first jitted call")
    chosen = parser.parse_args(arguments)
    from .explain import doctor

    if chosen.command == "doctor":
        doctor.doctor()
        return 0
    return doctor.build()


if __name__ == "__main__":
    sys.exit(main())
