"""Guests without a kernel: CPython in KVM microVMs, restored from a snapshot.

The command line and the gateway's ring entry import from here. This package never imports a plugin, and opens no
network connection: what a guest may reach is decided on the other side of its ring.
"""
