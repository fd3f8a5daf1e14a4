"""Waiting if the system refuses ``epoll_pwait2``: old kernels, and container runtimes."""

import errno
import platform
import sys

import pytest

from tests.programs import ROOT, run_to_exit

REFUSED = """
import ctypes, struct, sys

sys.path.append(sys.argv[2])  # Last, so that an installed package is the one under test.
from tools.harness.rig import Rig

EPOLL_PWAIT2 = 441
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

code = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


# struct seccomp_data starts with the system call number.
instructions = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in [
        (LOAD_WORD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, EPOLL_PWAIT2),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | code),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
)
program = Program(4, instructions)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
):
    sys.exit(f"no seccomp: {ctypes.get_errno()}")
ctypes.set_errno(0)
assert libc.syscall(EPOLL_PWAIT2, -1, None, 0, None, None, 0) == -1
assert ctypes.get_errno() == code, ctypes.get_errno()

with Rig({"t": [1]}) as rig:
    # Otherwise the step does not wait. epoll_pwait2 is only used for waits below 10 ms.
    rig.control.delay_ms = 1000.0
    rig.step()
    rig.step(1.0)
    future = rig.send("t", b"v")
    rig.answer_all()
    rig.step(1.0)
    assert future.get(0).offset == 0
print("waited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="system call numbers differ")
@pytest.mark.parametrize("name", ["EPERM", "ENOSYS"])
def test_epoll_wait_is_used_if_epoll_pwait2_is_refused(name: str) -> None:
    done = run_to_exit(REFUSED, str(getattr(errno, name)), str(ROOT))
    if "no seccomp" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.stdout, done.stderr) == ("waited\n", "")
