"""What tests of the data plane share: a gateway in the test's own loop, upstreams and raw clients that speak for real.

Nothing here stands in for a part of the product: the gateway is the real one, and what it talks to are sockets with
real TLS. Loopback only; nothing sleeps, everything waits for an event, bounded by the test's time limit.
"""
