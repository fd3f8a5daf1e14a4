"""A signal during a wait of the sender, which must not make the later waits coarser."""

import platform
import sys

import pytest

from tests.programs import ROOT, run_to_exit

INTERRUPTED = """
import ctypes, errno, signal, struct, sys, time

sys.path.append(sys.argv[1])  # Last, so that an installed package is the one under test.
from tools.harness.rig import Rig

EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2 = 232, 281, 441
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(EPOLL_PWAIT2, -1, None, 0, None, None, 0) != -1 or ctypes.get_errno() != errno.EBADF:
    sys.exit("no epoll_pwait2")


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


# struct seccomp_data begins with the number of the call.
instructions = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in [
        (LOAD_WORD, 0, 0, 0),
        (JUMP_IF_EQUAL, 1, 0, EPOLL_WAIT),
        (JUMP_IF_EQUAL, 0, 1, EPOLL_PWAIT),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
)
program = Program(5, instructions)
signal.signal(signal.SIGALRM, lambda number, frame: None)

with Rig({"t": [1]}) as rig:
    # Else it does not wait. What is asked for are waits below 10 ms.
    rig.control.delay_ms = 1000.0
    rig.step()
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while True:
        began = time.monotonic()
        rig.step(9.0)
        if time.monotonic() - began < 0.009:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    # The waits that count milliseconds fail from now on.
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        sys.exit(f"no seccomp: {ctypes.get_errno()}")
    rig.step(1.0)
print("waited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls differ")
def test_a_signal_during_a_wait_leaves_later_waits_exact() -> None:
    done = run_to_exit(INTERRUPTED, str(ROOT))
    if "no seccomp" in done.stderr or "no epoll_pwait2" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.stdout, done.stderr) == ("waited\n", "")
