"""TLS for a ``Rig``: both ends of a session over a socket pair, after the handshake."""

import socket
import ssl

from cyproducer.net.tls_transport import TlsSession
from tools.harness.tls import Authority, TlsEnd

AUTHORITY = Authority()


class TlsPair:
    """Makes sessions for ``Rig(tls=...)``. ``in_c``: without the GIL, or through Python's ``ssl`` module."""

    def __init__(
        self, in_c: bool = True, context: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None
    ) -> None:
        self.in_c = in_c
        self.context = context or AUTHORITY.client()
        self.server = server or AUTHORITY.server()

    def __call__(self, theirs: socket.socket) -> tuple[TlsSession, TlsEnd]:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        far_in, far_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = TlsEnd(theirs, self.server)
        end._incoming, end._outgoing = far_in, far_out
        end.connection = self.server.wrap_bio(far_in, far_out, server_side=True)
        ends = [(client, outgoing, far_in), (end.connection, far_out, incoming)]
        while ends:
            for each in list(ends):
                connection, written, other = each
                try:
                    connection.do_handshake()
                    ends.remove(each)
                except ssl.SSLWantReadError:
                    pass
                other.write(written.read())
        return TlsSession(client, incoming, outgoing, self.in_c), end
