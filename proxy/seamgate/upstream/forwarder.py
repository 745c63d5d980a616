"""Passes questions on to the system's resolver and hands back its answers as they came. Caches nothing.

Called by the DNS entry for what the cache does not hold: types other than A and AAAA, and whatever a client that
validates DNSSEC asks. The question was understood and is written anew by the entry; the answer is checked to be that
question's, and is otherwise the client's to read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from seamgate.address import canonical_address
from seamgate.errors import ResolveFailed
from seamgate.upstream import dns_message
from seamgate.upstream.dns_exchange import exchange_tcp, exchange_udp
from seamgate.upstream.dns_message import MalformedAnswer
from seamgate.upstream.resolver import (
    NEVER_ASKED,
    DnsConfig,
    SystemNames,
    load_system_names,
    server_text,
)


class Forwarder:
    """Knows the servers and the time limits of one configuration."""

    def __init__(self, config: DnsConfig, system: SystemNames | None = None) -> None:
        """Read what the configuration does not say from the machine's files.

        Raises:
            ConfigError: a server is none.
        """
        self._deadline_s = config.deadline_s
        self._system = system if system is not None else load_system_names(config)

    def is_local(self, name: str) -> bool:
        """Whether a canonical name is known here, or is never in the DNS: no server is asked about it."""
        last = name.rpartition(".")[2]
        return (
            last == "localhost" or last in NEVER_ASKED or name in self._system.static or bool(canonical_address(name))
        )

    async def forward(self, write: Callable[[int], bytes], *, tcp: bool) -> bytes:
        """Ask one server after the other until one answers; return its message.

        Args:
            write: makes the query with this id.
            tcp: whether to ask over TCP, as the client did; over UDP an answer may say that it is cut.

        Raises:
            ResolveFailed: none answers in time. What an answer says, failures included, is no error here.
        """
        problems: dict[tuple[str, int], str] = {}
        exchange = exchange_tcp if tcp else exchange_udp
        try:
            async with asyncio.timeout(self._deadline_s):
                for _ in range(self._system.attempts):
                    for server in self._system.servers:
                        try:
                            async with asyncio.timeout(self._system.timeout_s):
                                return await exchange(server, write(secrets.randbelow(65536)))
                        except TimeoutError:
                            problems[server] = f"no answer within {self._system.timeout_s:g} s"
                        except (OSError, MalformedAnswer) as error:
                            problems[server] = str(error) or type(error).__name__
        except TimeoutError:
            raise ResolveFailed(f"no DNS server answered within {self._deadline_s:g} s") from None
        detail = "; ".join(f"{server_text(server)}: {problem}" for server, problem in problems.items())
        raise ResolveFailed(detail or "no DNS server is known; name some under dns.servers, or mend /etc/resolv.conf")


def answered_addresses(message: bytes, kind: int) -> tuple[str, ...]:
    """Return the addresses in an answer to a question for A or AAAA, so that they can be checked.

    Raises:
        MalformedAnswer: it can't be read.
    """
    return dns_message.read_answer(message, kind, max_addresses=dns_message.MAX_RECORDS).addresses
