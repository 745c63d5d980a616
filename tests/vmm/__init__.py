"""Tests of guests without a kernel; those marked `kvm` need /dev/kvm."""
