"""Runs one command, and kills it when the process that started this script is gone: ``supervise.py
COMMAND...``

Prints the command's pid, then reads lines from stdin. Each names a signal (``SIGTERM``, ``SIGSTOP``, ...),
which it sends to the command and confirms with a line; for ``SIGSTOP`` once the process has stopped. At the
end of stdin, which also comes if the parent is killed, it kills the command. Exits with the command's status.

A separate process instead of ``prctl(PR_SET_PDEATHSIG)``, which exists only on Linux and fires when the
thread that started the child ends. As the parent of the command, it also never signals a reused pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> None:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)

    def follow() -> None:
        status = child.wait()
        os._exit(status if status >= 0 else 128 - status)

    threading.Thread(target=follow, name="follow").start()
    for line in sys.stdin:
        name = line.strip()
        child.send_signal(signal.Signals[name])
        if name == "SIGSTOP":
            # Its threads run on for a moment after the signal, long enough to respond to a request.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WUNTRACED)
        print(name, flush=True)
    child.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
