"""Runs one command and kills it when whoever started this script is gone: ``supervise.py COMMAND...``

Prints the command's pid, then obeys lines on stdin: each names a signal (``SIGTERM``, ``SIGSTOP``, ...), is
sent to the command and answered by a line, that of ``SIGSTOP`` once nothing runs any more. The end of stdin,
which the kernel brings about even where the parent was killed, kills the command. Exits with its status.

A process of its own rather than ``prctl(PR_SET_PDEATHSIG)``: that is Linux's alone and fires when the
thread that started the child ends. Being the parent, it also never signals a pid that has been given away.
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
            # Its threads go on for a moment after the signal, enough to answer a request.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WUNTRACED)
        print(name, flush=True)
    child.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
