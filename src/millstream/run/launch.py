"""What a child process runs first: it asks the kernel to be told when its parent dies, then becomes the command.

Run by path with `python -I -S`, so it costs 15 ms and imports nothing of Millstream. It is a program of its own rather than a
function between fork and exec, because the supervisor's process has threads, and code there may wait for a lock that a thread
held at the fork.

The kernel ties the signal to the parent's *thread*: it is sent when the thread that started the child ends. The supervisor
starts everything from one thread that outlives all children.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """`launch.py PARENT COMMAND...`"""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # the parent died before the kernel knew whom to tell
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
