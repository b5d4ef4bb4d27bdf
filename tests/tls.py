"""A TLS end before a plain PostgreSQL server: what a client sees of a server with certificates, also when that one dies."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # SSLRequest


class TlsProxy:
    """Listens on 127.0.0.1, takes TLS connections of PostgreSQL clients and passes their bytes to the server's port."""

    def __init__(self, folder: Path, port: int) -> None:
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            assert client.recv(8, socket.MSG_WAITALL) == _REQUEST
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as secure,
                socket.create_connection(("127.0.0.1", self._server_port)) as server,
            ):
                self._pass(secure, server)

    def _pass(self, secure: ssl.SSLSocket, server: socket.socket) -> None:
        """Pass bytes both ways in one thread: a TLS connection is not for two. It ends without a farewell, as by a crash."""
        secure.settimeout(0.005)
        server.settimeout(0.005)
        while True:
            for one, other in ((secure, server), (server, secure)):
                with suppress(TimeoutError, ssl.SSLWantReadError):
                    data = one.recv(65536)
                    if not data:
                        return
                    other.settimeout(30)
                    other.sendall(data)
                    other.settimeout(0.005)
