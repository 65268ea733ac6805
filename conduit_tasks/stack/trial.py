"""The name by which the trial of the compose stack was started first: `python -m conduit_tasks.stack.trial`."""

if __name__ == "__main__":
    from conduit_tasks.trial.__main__ import run_program

    run_program()
