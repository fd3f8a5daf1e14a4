"""The pointers in Python's TLS objects: found on every Python of the tests, and refused if in doubt."""

import errno
import io
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from cyproducer.net import openssl
from cyproducer.net.tls_transport import TlsSession
from tests.scripted.tls_pair import AUTHORITY, TlsPair
from tests.seccomp import needs_seccomp, output_without


def session(context: ssl.SSLContext | None = None) -> TlsSession:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made, _ = TlsPair(context=context)(theirs)
    return made


def test_openssl_can_be_called_from_c() -> None:
    """Otherwise all of TLS would go the slow way, and no other test would fail."""
    assert openssl.why_not() == ""
    assert session().slow_because == ""


Parts = tuple[object, object, object]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, o: (object(), s.incoming, s.outgoing), "object has no connection of Python's own"),
        (lambda s, o: (s.connection, io.BytesIO(), s.outgoing), "its buffers are not Python's own"),
        (lambda s, o: (s.connection, s.incoming, io.BytesIO()), "its buffers are not Python's own"),
        (
            lambda s, o: (s.connection, o.incoming, s.outgoing),
            "the connection does not refer to its context and buffers",
        ),
        (
            lambda s, o: (s.connection, s.incoming, o.outgoing),
            "the connection does not refer to its context and buffers",
        ),
        (
            lambda s, o: (s.connection, s.outgoing, s.incoming),
            "the connection's attributes differ from Python's",
        ),
    ],
)
def test_objects_that_do_not_belong_together(
    change: Callable[[TlsSession, TlsSession], Parts], reason: str
) -> None:
    one, other = session(), session()
    assert TlsSession(*change(one, other)).slow_because == reason  # type: ignore[arg-type]
    assert (one.slow_because, other.slow_because) == ("", "")


def test_a_context_with_a_message_callback() -> None:
    """OpenSSL calls it for each TLS record, with the GIL."""
    context = AUTHORITY.client()
    context._msg_callback = lambda *arguments: None  # type: ignore[attr-defined]
    assert session(context).slow_because == "its context has a message callback"


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLSv1_2 is deprecated:DeprecationWarning")
def test_a_context_that_was_made_by_another_function_of_openssl() -> None:
    """Its method table is not the one that is looked for: so would be that of another copy of OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLSv1_2)
    AUTHORITY.ca.configure_trust(context)
    assert "another copy of OpenSSL" in session(context).slow_because


def test_a_key_log_is_written_by_a_session_in_c(tmp_path: Path) -> None:
    context = AUTHORITY.client()
    context.keylog_filename = str(tmp_path / "keys")
    assert session(context).slow_because == ""
    assert (tmp_path / "keys").read_text()


REFUSED = """
import ctypes, sys

sys.path.append(sys.argv[2])  # Last, so that an installed package is the one under test.
from tests.net.test_openssl import session
from tests.seccomp import PROCESS_VM_READV, forbid

forbid(PROCESS_VM_READV, int(sys.argv[1]), 0, None, 0, None, 0, 0)
print(repr(session().slow_because))
"""


@pytest.mark.slow
@needs_seccomp
@pytest.mark.parametrize("name", ["EPERM", "ENOSYS"])
def test_memory_is_read_through_a_pipe_if_the_system_call_is_refused(name: str) -> None:
    assert output_without(REFUSED, getattr(errno, name)) == "''\n"
