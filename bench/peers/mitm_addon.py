"""Runs inside mitmdump: sets the bench's credential on every request."""

import os

from mitmproxy import http

SECRET = os.environ["BENCH_SECRET"]


def request(flow: http.HTTPFlow) -> None:
    """Put the credential in."""
    flow.request.headers["x-api-key"] = SECRET
