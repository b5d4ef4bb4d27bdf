"""A raw client for tests: one connection, requests and responses as generated messages, any version."""

import socket
import struct

from millstream.protocol.messages import APIS


class Wire:
    """Speaks the protocol without a client library's ideas."""

    def __init__(self, address: str, client_id: str = "wire") -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.client_id = client_id
        self._correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request, version: int) -> int:
        api = APIS[request.API_KEY]
        self._correlation += 1
        name = self.client_id.encode()
        body = struct.pack(">hhih", api.key, version, self._correlation, len(name)) + name
        if version >= api.flexible:
            body += b"\0"
        body += request.encode(version)
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        return self._correlation

    def receive(self, request, version: int):
        api = APIS[request.API_KEY]
        (size,) = struct.unpack(">i", self.exactly(4))
        data = self.exactly(size)
        start = 5 if version >= api.flexible and api.key != 18 else 4
        message, end = api.response().decode_from(data, version, start)
        assert end == len(data), f"{api.name} {version}: {len(data) - end} bytes too many"
        return message

    def ask(self, request, version: int | None = None):
        if version is None:
            version = request.VERSIONS[1]
        self.send(request, version)
        return self.receive(request, version)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def closed(self) -> bool:
        """Whether the broker closes the connection (waits for it)."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
