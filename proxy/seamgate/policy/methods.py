"""Methods of HTTP that there are, to tell one that is misspelt: such a rule is legal and never fits.

Called by `lint`, and for credentials' methods. Pure.

Not asked by any request: policy compares methods as they are written, registered or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from seamgate.hints import did_you_mean

REGISTERED = frozenset(
    (
        "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY"
        " MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND PROPPATCH PUT QUERY"
        " REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL"
    ).split()
)
"""Of IANA's HTTP Method Registry (https://www.iana.org/assignments/http-methods), without `*` and PRI, which are
reserved so that nobody uses them (RFC 9110 section 18.2, RFC 9113 section 11.6)."""


def unknown_methods(methods: Iterable[str]) -> list[str]:
    """Return a sentence for each method that is not registered, in order.

    Args:
        methods: upper-case.
    """
    return [
        f"the method {method} is not in IANA's registry{did_you_mean(method, REGISTERED)}"
        for method in sorted(methods)
        if method not in REGISTERED
    ]
