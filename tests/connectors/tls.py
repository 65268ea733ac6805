"""A certificate authority of the tests' own, and a door that speaks TLS in front of a server that does not."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
"""Options of `openssl req`. RSA keys take a hundred times as long to find."""


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """`ca`: its certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.ca = folder, folder / "ca.pem"
        new = ("req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=tests")
        _openssl(*new, "-keyout", str(folder / "ca.key"), "-out", str(self.ca))

    def context(self, host: str) -> ssl.SSLContext:
        """Of a server of this address, an IP."""
        key, request, made = (self._folder / f"{host}.{end}" for end in ("key", "csr", "pem"))
        alt = f"subjectAltName=IP:{host}"
        new = ("req", *NEW_KEY, "-subj", "/CN=server", "-addext", alt)
        _openssl(*new, "-keyout", str(key), "-out", str(request))
        signed = ("x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._folder / "ca.key"))
        _openssl(*signed, "-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out", str(made))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made, key)
        return context


class Door:
    """Listens at `port` of the loopback with TLS, and hands on to `address`: a path, or (host, port)."""

    def __init__(self, context: ssl.SSLContext, address: Any) -> None:
        self._context, self._address = context, address
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listening.accept()
            except OSError:
                return
            try:
                inside = self._context.wrap_socket(raw, server_side=True)
            except OSError:
                raw.close()
                continue
            behind = socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET)
            behind.connect(self._address)
            self._open += [inside, behind]
            for pair in ((inside, behind), (behind, inside)):
                self._threads.append(threading.Thread(target=self._hand_on, args=pair))
                self._threads[-1].start()

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()
