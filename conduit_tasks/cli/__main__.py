"""`python -m conduit_tasks.cli` runs the command `conduit` if its script is not on the PATH."""

from conduit_tasks.cli.main import main

main()
