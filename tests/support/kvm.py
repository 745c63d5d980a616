"""Whether guests in microVMs can be tested here; the one place that leaves them out, and says so.

Where /dev/kvm does not exist the tests that need it are skipped, unless `SEAMGATE_TEST_KVM=required` says that it
should be there, as CI does. Where it exists and does not work, they fail.
"""

from __future__ import annotations

import os

import pytest

from seamgate_vmm.host import KVM_DEVICE, Host, open_host

REQUIRED = "SEAMGATE_TEST_KVM"


def need_kvm() -> Host:
    """Return this host, or leave the test out. Fails where KVM should be there and is not usable."""
    if not os.path.exists(KVM_DEVICE):
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(f"{KVM_DEVICE} should be here ({REQUIRED}=required) and is not")
        pytest.skip("no /dev/kvm: guests, snapshots, workers and the ring in a guest were not tested")
    return open_host()
