"""Measures many guests at once: start, memory, latency, throughput. `seamgate vm bench` drives it, a gateway judges.

Nothing here knows the gateway: what serves a guest's streams comes in as a `Seam` (`agents.py`).
"""
