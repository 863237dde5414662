"""``python -m lightwell``: the command line."""

from lightwell.cli.entry import main

main()
