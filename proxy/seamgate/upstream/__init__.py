"""The way out: names to addresses, address checks, TLS material, connections and the pool of sessions."""
