"""`python -m conduit_tasks.cli` is the command `conduit`, where its script is not on the PATH."""

from conduit_tasks.cli.main import main

main()
