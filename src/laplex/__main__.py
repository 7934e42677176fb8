"""`python -m laplex`: the command where its script is not on the path."""

from laplex.cli import main

main()
