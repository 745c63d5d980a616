"""What the bench asks for and sets up: command lines, configurations, choices. No program is started here."""

from pathlib import Path

import pytest

from seamgate.upstream.pool_key import PoolConfig
from seamgate_bench import ground as grounds
from seamgate_bench import lineup, load
from seamgate_bench.adapters import envoy, seamgate
from seamgate_bench.cli import exit_code
from seamgate_bench.ground import Ground, UpstreamStatus
from seamgate_bench.runner import Results
from seamgate_bench.versions import parse_version


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(
        directory=tmp_path,
        proxy_core=0,
        load_core=1,
        secret="the-secret",
        ca_cert=tmp_path / "ca.pem",
        ca_key=tmp_path / "ca.key",
        leaf=tmp_path / "leaf.pem",
        upstream_port=4443,
        status_port=4444,
        hosts=tmp_path / "hosts",
    )


@pytest.mark.parametrize("size_bytes", sorted(grounds.BODIES.values()))
def test_bodies_have_their_exact_size(size_bytes: int) -> None:
    """The load generator checks lengths, so they must be exact."""
    assert len(grounds.make_body(size_bytes)) == size_bytes


def test_the_upstreams_counters_leave_the_asker_out() -> None:
    """Each look at the status page is itself a connection, and is not counted as the peer's."""
    page = (
        "Active connections: 17 \nserver accepts handled requests\n 120 120 5000 \nReading: 0 Writing: 1 Waiting: 16 \n"
    )
    before = grounds.parse_stub_status(page)
    assert before == UpstreamStatus(accepted=120, active=17)
    assert grounds.connects_between(before, UpstreamStatus(accepted=121, active=17)) == 0
    with pytest.raises(ValueError, match="not a stub_status page"):
        grounds.parse_stub_status("<html>502</html>")


def test_only_a_client_without_a_proxy_holds_the_credential(ground: Ground) -> None:
    """Behind a peer the client sends no secret: what arrives upstream was injected."""
    demand = load.Demand("/v1/small", 32, 1.0)
    through = load.arguments(ground, load.Way("mitm", 3128, ground.ca_cert), demand)
    direct = load.arguments(ground, load.Way("t2t", 4443, ground.ca_cert, holds_credential=True), demand)
    assert not [a for a in through if "the-secret" in a]
    assert direct[-2:] == ["--header", "x-api-key: the-secret"]


def test_no_request_of_a_scenario_waits_for_a_session(ground: Ground, tmp_path: Path) -> None:
    """The bench's one guest has as many as any scenario has at once: the others have no limit, or a lifted one."""
    pool = seamgate.configuration(ground, tmp_path, 3128)["pool"]
    most = max(scenario.connections for scenario in lineup.SCENARIOS)
    assert min(pool.values()) * PoolConfig().guest_share >= most


@pytest.mark.parametrize("rules", [1, 2, 100, 1000])
def test_the_policy_has_exactly_as_many_rules_as_said(ground: Ground, rules: int) -> None:
    """N rules are N, with distinct ids, and one of them allows the bench's requests."""
    written = seamgate.policy(ground, rules)["rules"]
    ids = [r["id"] for r in written]
    assert len(ids) == len(set(ids)) == rules
    assert ids.count("bench") == 1


def test_the_configuration_holds_no_secret(ground: Ground, tmp_path: Path) -> None:
    """The credential reaches Seamgate by its environment, as a user would do it."""
    assert "the-secret" not in str(seamgate.configuration(ground, tmp_path, 3128))


def test_envoy_verifies_the_upstream(ground: Ground) -> None:
    """A peer that does not verify would be cheaper for the wrong reason."""
    context = envoy.config(ground, 3128)["static_resources"]["clusters"][1]["transport_socket"]["typed_config"]
    validation = context["common_tls_context"]["validation_context"]
    assert validation["trusted_ca"] == {"filename": str(ground.ca_cert)}
    assert validation["match_typed_subject_alt_names"][0]["matcher"] == {"exact": "bench.test"}


def test_several_sizes_of_policy_are_peers_of_their_own() -> None:
    """--rules 10,1000 measures both in one run, the first as plain seamgate."""
    names = [p.name for p in lineup.peers([10, 1000])]
    assert names[:2] == ["seamgate", "seamgate-1000"]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """A misspelt peer or scenario ends the command, it is not left out in silence."""
    with pytest.raises(ValueError, match=r"no peer sqid; there are .*squid"):
        lineup.choose_peers(lineup.peers([100]), ["sqid"])
    with pytest.raises(ValueError, match=r"no scenario smal; there are small"):
        lineup.choose_scenarios(["smal"], None)


def test_peers_are_left_out_only_where_they_say_nothing() -> None:
    """squid-first differs in new connections only; direct has no memory of its own."""
    every = {p.name: p for p in lineup.peers([100])}
    small, new, idle = (lineup.choose_scenarios([n], None)[0] for n in ("small", "new", "idle"))
    assert (lineup.fits(every["squid-first"], small), lineup.fits(every["squid-first"], new)) == (False, True)
    assert (lineup.fits(every["direct"], small), lineup.fits(every["direct"], idle)) == (True, False)
    assert lineup.steps([every["squid"], every["direct"]], [small, idle], repeats=5) == 2 + 5 + 5 + 1


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("nginx version: nginx/1.22.1", "1.22.1"),
        ("/usr/lib/python3.11/envoy  version: 9e5580933739/1.40.0/Clean/RELEASE/BoringSSL", "1.40.0"),
        ("Mitmproxy: 11.0.2\nPython:    3.11.7", "11.0.2"),
        ("no number", ""),
    ],
)
def test_versions_are_read_from_what_programs_print(printed: str, version: str) -> None:
    """Every peer prints its version in its own way."""
    assert parse_version(printed) == version


def test_lost_audit_records_fail_the_run() -> None:
    """A gateway that is fast because it did not audit has not been measured."""
    assert exit_code(Results(audited={"seamgate": (1000, 1000)}), "seamgate", check=False) == 0
    assert exit_code(Results(audited={"seamgate": (999, 1000)}), "seamgate", check=False) == 1
    assert exit_code(Results(missing={"seamgate": "not installed"}), "seamgate", check=False) == 1
    assert exit_code(Results(missing={"envoy": "not installed"}), "seamgate", check=False) == 0
