"""Guests in a network namespace of their own: no way out but the gateway's listeners, which are inside it. No root.

Two sides. The launcher (`launcher`, with `namespace`, `netlink`, `ruleset`, `mounts`, `confine`, `system`) is a process
of its own that makes the namespaces, opens the listening sockets in them, hands those to the gateway and becomes the
guest. The gateway's side (`guest`, with `names`, `transparent`, `refusals`) serves the sockets: each stream meets the
same classes as one of any other entry. `layout` and `control` hold what both sides have to agree on.
"""
