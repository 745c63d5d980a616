"""How the bench groups what profilers saw."""

import pytest

from seamgate_bench import profiling
from seamgate_bench.profiling import Stack

PACKAGES = ("seamgate", "seamgate_plugins")
SERVE = "serve (/src/proxy/seamgate/cli/serve.py:40)"
RAW = f"""\
<module> (/venv/bin/seamgate:8);{SERVE};data_received (/src/proxy/seamgate/entry/proxy.py:9) 6
{SERVE};feed (/src/proxy/seamgate/protocol/http1.py:70);parse (/venv/h11/_readers.py:3) 3
run (/usr/lib/python3.11/asyncio/runners.py:118) 1
"""


def test_work_belongs_to_the_innermost_frame_of_ours() -> None:
    """What a library does is charged to the module that called it."""
    owners = {profiling.owner_of(s, PACKAGES): s.count for s in profiling.parse_stacks(RAW)}
    assert owners == {
        "seamgate.entry.proxy": 6,
        "seamgate.protocol.http1": 3,
        "(no frame of its own: loop, start-up)": 1,
    }


def test_a_checkout_may_have_the_packages_name() -> None:
    """A library installed below a folder called seamgate is not ours, and a plugin there is not the gateway's."""
    library = "parse (/home/me/seamgate/.venv/lib/python3.11/site-packages/h11/_readers.py:3)"
    plugin = "judge (/home/me/seamgate/plugins/seamgate_plugins/policy.py:2)"
    assert profiling.owner_of(Stack((plugin, library), 1), PACKAGES) == "seamgate_plugins.policy"


def test_functions_carry_what_they_call() -> None:
    """A function is charged with the foreign code below it, once a sample."""
    counts = profiling.functions_of(profiling.parse_stacks(RAW), PACKAGES)
    assert counts == {"seamgate.entry.proxy.data_received": 6, "seamgate.protocol.http1.feed": 3}


def test_shares_add_up_to_one() -> None:
    """Shares are of all samples, also of those that are not shown."""
    counts = profiling.parse_perf(
        "  78.20%  libpython3.11.so.1.0\n  13.60%  [kernel.kallsyms]\n   8.20%  odd.so\n\n# note\n"
    )
    assert profiling.shares(counts) == [("interpreter", 0.782), ("kernel", 0.136), ("odd.so", 0.082)]
    assert profiling.shares(counts, 1) == [("interpreter", 0.782)]


def test_another_format_is_refused() -> None:
    """A changed py-spy must not end as an empty table."""
    with pytest.raises(ValueError, match="not a line of py-spy's raw format"):
        profiling.parse_stacks("Total samples: many")
