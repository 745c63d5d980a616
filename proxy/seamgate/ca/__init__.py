"""The gateway's certificate authority: made, kept, and signing a certificate for each host that guests speak TLS to.

`store` makes and loads it, `leaf` mints certificates and contexts, `environment` tells clients to trust it.
"""

from seamgate.ca.environment import client_environment
from seamgate.ca.leaf import CertificateAuthority, load_authority
from seamgate.ca.store import CaConfig, CaFiles, default_directory, init_ca, load_ca

__all__ = [
    "CaConfig",
    "CaFiles",
    "CertificateAuthority",
    "client_environment",
    "default_directory",
    "init_ca",
    "load_authority",
    "load_ca",
]
