"""Runs inside proxy.py: sets the bench's credential on every request."""

import os

from proxy.http.parser import HttpParser
from proxy.http.proxy import HttpProxyBasePlugin

SECRET = os.environ["BENCH_SECRET"].encode()


class InjectCredential(HttpProxyBasePlugin):
    """Sets one header."""

    def handle_client_request(self, request: HttpParser) -> HttpParser:
        """Put the credential in."""
        request.add_header(b"x-api-key", SECRET)
        return request
