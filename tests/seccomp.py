"""Forbids system calls to this process, as container runtimes do."""

import ctypes
import platform
import struct
import sys

import pytest

from tests.programs import ROOT, run_to_exit

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

EPOLL_PWAIT2 = 441
PROCESS_VM_READV = 310 if platform.machine() == "x86_64" else 270

needs_seccomp = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="seccomp is Linux's, and the numbers are those of two machines",
)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbid(call: int, code: int, *arguments: object) -> None:
    """Makes a system call fail with the error ``code`` from now on, and checks that with ``arguments``.

    Ends the process with "no seccomp" if the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # struct seccomp_data starts with the system call number.
    instructions = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in [
            (LOAD_WORD, 0, 0, 0),
            (JUMP_IF_EQUAL, 0, 1, call),
            (RETURN, 0, 0, SECCOMP_RET_ERRNO | code),
            (RETURN, 0, 0, SECCOMP_RET_ALLOW),
        ]
    )
    program = _Program(4, instructions)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        sys.exit(f"no seccomp: {ctypes.get_errno()}")
    ctypes.set_errno(0)
    assert libc.syscall(call, *arguments) == -1
    assert ctypes.get_errno() == code, ctypes.get_errno()


def output_without(program: str, code: int) -> str:
    """Returns what a program prints that forbids itself a call; its arguments are ``code`` and the root."""
    done = run_to_exit(program, str(code), str(ROOT))
    if "no seccomp" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stderr == ""
    return str(done.stdout)
