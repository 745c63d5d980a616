"""Runs inside a guest: the way to a first request and back, without a network.

A template has run it many times before it is saved, so that what CPython does once (specialise bytecode, fill caches,
import what is imported late) is shared and not done, and written, by every guest. A warm machine has run it once more,
so that the pages it touches are mapped. Nothing of it is left but that. The more kinds of what agents do are here, the
fewer pages each has to map and to copy once it runs; a warm machine keeps a page for each page that is written here.

The host puts this file into the guest's view; it is not imported by the host.
"""

# mypy: ignore-errors
# pyright: basic
import http.client
import json
import os
import socket
import ssl
import sys
import time
import urllib.parse
import urllib.request

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    b'Content-Length: 42\r\n\r\n{"a": [1, 2.5, null], "b": {"c": "d\\n"}}  '
)


def rehearse():
    """Make a request over a pair of sockets, and one that finds no network."""
    ours, theirs = socket.socketpair()
    theirs.sendall(_ANSWER)
    connection = http.client.HTTPSConnection("seamgate.test", context=ssl.create_default_context())
    connection.sock = ours
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    connection.request("POST", "/v1/x?" + urllib.parse.urlencode({"q": "w"}), body=body, headers={"a": "b"})
    response = connection.getresponse()
    json.loads(response.read())
    str(response.status)
    connection.close()
    theirs.close()
    time.sleep(0)
    connection = http.client.HTTPSConnection("seamgate.test", 443)
    try:
        connection.request("POST", "/")
    except OSError:
        pass
    sys.stdout.flush()
    os.environ.get("PATH")
    Conversation("m", retries=2).run(["x", "y"])
    time.sleep(0.001)  # all threads wait, and the host is told: another way than that of sleep(0)


class Conversation:
    """What the compiler is shown: the kinds of statements and expressions that agents are made of."""

    def __init__(self, model, *, retries=1, **options):
        self.model, self.retries, self.turns = model, retries, []
        self.options = {"max_tokens": 100, **options}

    def run(self, words):
        """Have turns, as often as there are retries."""
        started = time.time()
        while self.retries > 0:
            try:
                with open(os.devnull, "wb") as out:
                    out.write(b"\n".join(f"{w!r} of {self.model:>4}".encode() for w in words if w))
                self.turns += [{"role": "user", "content": [{"text": str(n) + w}]} for n, w in enumerate(words)]
                if started < 1 and self.turns[0]["role"] != "user":
                    raise ValueError(f"{self.model}: {started}")
            except (KeyError, ValueError) as error:
                sys.exit(str(error))
            else:
                self.retries -= 1
            finally:
                started = max(0.0, time.time() - started)
        return sorted(((t["role"], len(t["content"])) for t in self.turns[-2:]), key=lambda item: item[1])


def rehearse_more():
    """Do what fewer guests do: in the template only, as a warm machine keeps what it writes."""
    try:
        urllib.request.urlopen("https://seamgate.test/", timeout=1)
    except OSError:
        pass
