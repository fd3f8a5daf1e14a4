"""Terminates TLS in front of a null broker. A program; ``secured`` runs it.

    python tls_front.py CERTIFICATE PORTS

Listens on this number of ports, and prints them as JSON. Then reads the ports of the null broker, as JSON
too, and forwards the connections to each port to the one in the same place. Exits at the end of stdin. Owns
no faults: what the null broker cuts, it cuts, without TLS's close_notify if that was a reset.
"""

import asyncio
import json
import socket
import ssl
import sys
from functools import partial

CHUNK = 1 << 17


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
        target.close()
    except OSError:
        target.transport.abort()


async def connect(port: int, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
    try:
        broker, to_broker = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        to_client.transport.abort()
        return
    to_broker.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.gather(pass_on(client, to_broker), pass_on(broker, to_client))


async def serve(certificate: str, count: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    print(json.dumps([listener.getsockname()[1] for listener in listeners]), flush=True)
    loop = asyncio.get_running_loop()
    # Failed handshakes are what faults cause.
    loop.set_exception_handler(lambda loop, what: None)
    targets = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    servers = [
        await asyncio.start_server(partial(connect, port), sock=listener, ssl=context, limit=CHUNK)
        for listener, port in zip(listeners, targets, strict=True)
    ]
    await loop.run_in_executor(None, sys.stdin.read)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
