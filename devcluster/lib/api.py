"""A client of the API server: one request after another on a connection that each thread keeps.

A loop that polls by `kubectl` starts a program ten times a second; a dozen clusters that start at once then keep a core
busy with nothing else.
"""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import tempfile
import threading
from urllib.parse import urlsplit

from .host import Failure

JSON, JSON_PATCH = "application/json", "application/json-patch+json"


class Unreachable(Failure):
    """The API server gave no answer."""


class Api:
    def __init__(self, config, timeout=10):
        where, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.address, self.timeout, self.kept = urlsplit(where["server"]), timeout, threading.local()
        self.context = ssl.create_default_context(cadata=base64.b64decode(where["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as file:  # Python loads a client certificate from files alone
            file.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            file.flush()
            self.context.load_cert_chain(file.name)

    def connect(self, timeout):
        connection = http.client.HTTPSConnection(self.address.hostname, self.address.port, timeout=timeout,
                                                 context=self.context)
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def get(self, path):
        return self.call("GET", path)

    def call(self, method, path, body=None, kind=JSON):
        """The object of the answer. What is not there, or is there already, is an answer; other refusals are not."""
        status, text = self.ask(method, path, body, kind)
        if status >= 300 and status not in (404, 409):
            raise Failure(f"{method} {path}: {status} {text[:300].decode(errors='replace')}")
        return json.loads(text)

    def ask(self, method, path, body=None, kind=JSON):
        """Status and text of the answer."""
        try:
            connection = getattr(self.kept, "connection", None)
            if connection:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    return self.exchange(connection, method, path, body, kind)
                # The server has closed the connection between two requests, or has been started again.
            return self.exchange(self.connect(self.timeout), method, path, body, kind)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {path} at {self.address.netloc}: {error or type(error).__name__}") from error

    def exchange(self, connection, method, path, body, kind):
        self.kept.connection = None
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": kind})
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            connection.close()
            raise
        self.kept.connection = connection
        return response.status, text

    def says(self, path, wanted):
        """Whether the answer to GET is there and as `wanted`, a function of its object, says."""
        try:
            status, text = self.ask("GET", path)
        except Unreachable:
            return False
        return status == 200 and wanted(json.loads(text))

    def is_ready(self):
        try:
            return self.ask("GET", "/readyz") == (200, b"ok")
        except Unreachable:
            return False
