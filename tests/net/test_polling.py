"""Waiting if the system refuses ``epoll_pwait2``: old kernels, and container runtimes."""

import errno

import pytest

from tests.seccomp import needs_seccomp, output_without

REFUSED = """
import sys

sys.path.append(sys.argv[2])  # Last, so that an installed package is the one under test.
from tests.seccomp import EPOLL_PWAIT2, forbid
from tools.harness.rig import Rig

forbid(EPOLL_PWAIT2, int(sys.argv[1]), -1, None, 0, None, None, 0)

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


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("name", ["EPERM", "ENOSYS"])
def test_epoll_wait_is_used_if_epoll_pwait2_is_refused(name: str) -> None:
    assert output_without(REFUSED, getattr(errno, name)) == "waited\n"
