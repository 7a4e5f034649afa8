"""The command that comes with the package, in the place of this process."""

import os
import sys

from qplan import command


def main() -> None:
    program = command()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
