"""`python -m tuner`: the same as `tune`."""

from tuner.cli import main

main()
