"""Measures Seamgate beside its peers, in one run on the same cores.

`bench/run.py` is the command (`make bench`), `bench/profile_seamgate.py` says where Seamgate's own time goes;
docs/performance.md has the method. Nothing here is part of the gateway, and nothing of the gateway is imported here:
Seamgate is started as a program, like every other peer.
"""
