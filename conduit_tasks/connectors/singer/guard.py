"""Runs a command in the process group of this process, and kills the whole group when the command, or the parent, ends.

Called as a script with the standard library alone: `guard.py LIFE STATUS COMMAND…`. LIFE: a pipe that the parent holds
open, however it ends the other end of it closes. STATUS: a pipe that takes the exit code, as text.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    life, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(life, False)
    os.set_inheritable(status, False)

    def watch() -> None:
        os.read(life, 1)
        os.killpg(0, signal.SIGKILL)

    try:
        child = subprocess.Popen(sys.argv[3:])  # noqa: S603 - what the pipeline file names
    except OSError as error:
        os.write(status, f"cannot be run: {error.strerror}".encode())
        return
    threading.Thread(target=watch, daemon=True).start()
    os.write(status, str(child.wait()).encode())
    # Whatever the command has left behind.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
