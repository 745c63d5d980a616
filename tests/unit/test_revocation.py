"""What a new generation's verdict means for what is under way, decided without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from seamgate import Effect, Guest, Reason, Request, Target, Verdict, allow, deny
from seamgate.credentials.config import CredentialConfig, SourceConfig
from seamgate.flow import Step
from seamgate.revocation import Revoked, bound_by, denial_of_sent, denial_of_unsent, revoke, revoked
from seamgate.seam import IsBound
from seamgate.upstream.addresses import AddressPermit, compile_permit
from seamgate.upstream.destination import OwnAddresses, check_destination

REQUEST = Request("1", Guest("g"), Target("https", "api.example", 443), "GET", "/v1/x")
ALLOWED = Verdict(Effect.ALLOW, Reason.ALLOWED, "rule", credentials=("key",))
DEFERRED = Verdict(Effect.DEFER, Reason.ALLOWED, "later", "it needs the body")
LIMITED = deny("full", reason=Reason.RATE_LIMITED, rule="limited")


class FakeSeam:
    """The part of a seam that is looked at."""

    def __init__(self, *, permit: Sequence[str] = (), own: Sequence[tuple[str, int]] = ()) -> None:
        self.permit = compile_permit(tuple(permit))
        self.own = OwnAddresses(own)
        self.under_way: set[Any] = set()
        self.tunnels: set[Any] = set()

    def check(self, addresses: tuple[str, ...], target: Target, permit: AddressPermit) -> tuple[str, ...]:
        """As the seam's, without a proxy."""
        return check_destination(addresses, target.port, permit, self.own, name=target.host)


def judged(
    verdict: Verdict,
    *,
    outcomes: Sequence[str] = (),
    used: Sequence[str] = (),
    address: str = "93.184.216.34",
    bound: Callable[[str, Request], bool] = lambda name, request: True,
    seam: FakeSeam | None = None,
) -> Verdict | None:
    """Ask what becomes of a request that was sent."""
    steps = [Step("p", "judge_request", 1.0, outcome) for outcome in outcomes]
    return denial_of_sent(seam or FakeSeam(), REQUEST, verdict, steps, used, address, bound)  # type: ignore[arg-type]


def test_what_is_allowed_goes_on() -> None:
    """An allow that grants what was used, to an address that is permitted, ends nothing."""
    assert judged(ALLOWED, used=["key"]) is None
    assert judged(allow()) is None


@pytest.mark.parametrize("verdict", [deny("no", rule="r"), Verdict(), deny("broken", reason=Reason.PLUGIN_FAILED)])
def test_what_is_denied_ends(verdict: Verdict) -> None:
    """Any denial does, that of a plugin which failed too."""
    assert judged(verdict, outcomes=["deny"]) is verdict
    assert denial_of_unsent(True, verdict) is verdict


def test_what_can_not_be_told_ends() -> None:
    """A deferral that nothing can resolve any more is a denial, with the rule that it is about."""
    for denial in (judged(DEFERRED), denial_of_unsent(False, DEFERRED)):
        assert denial is not None
        assert (denial.reason, denial.rule) == (Reason.UNEVALUABLE, "later")
    assert denial_of_unsent(True, DEFERRED) is None  # its body is still to come


def test_full_counters_end_nothing_that_was_admitted() -> None:
    """Unless another plugin denies as well, whose denial the fold hides."""
    assert judged(LIMITED, outcomes=["deny", "none"], used=["key"]) is None
    for other in ("deny", "failed", "overrun"):
        assert judged(LIMITED, outcomes=["deny", other]) is LIMITED
    assert denial_of_unsent(True, LIMITED) is None  # what is not sent is told so by the judgement itself


def test_full_counters_hide_no_lost_credential() -> None:
    """What was used has to be bound all the same."""
    denial = judged(LIMITED, outcomes=["deny"], used=["key"], bound=lambda name, request: False)
    assert denial is not None and denial.reason is Reason.CREDENTIAL_UNBOUND


@pytest.mark.parametrize(("used", "bound"), [(["other"], True), (["key", "other"], True), (["key"], False)])
def test_a_credential_has_to_be_granted_and_bound(used: list[str], bound: bool) -> None:
    """Every one that went along."""
    denial = judged(ALLOWED, used=used, bound=lambda name, request: bound)
    assert denial is not None and denial.reason is Reason.CREDENTIAL_UNBOUND


def test_an_address_has_to_be_permitted_now() -> None:
    """By the configuration or by the rule; and it must not have become the gateway's own."""
    denial = judged(ALLOWED, address="127.0.0.1")
    assert denial is not None and denial.reason is Reason.ADDRESS_FORBIDDEN
    assert judged(ALLOWED, address="127.0.0.1", seam=FakeSeam(permit=["loopback"])) is None
    permitted = Verdict(Effect.ALLOW, Reason.ALLOWED, addresses=("loopback",))
    assert judged(permitted, address="127.0.0.1") is None
    own = judged(permitted, address="127.0.0.1", seam=FakeSeam(own=[("127.0.0.1", 443)]))
    assert own is not None and own.reason is Reason.OWN_ADDRESS


def test_whoever_is_cut_off_is_told_why() -> None:
    """The reason is always `revoked`; rule and message are those of the denial."""
    told = revoked(deny("no hooks", rule="r"))
    assert (told.effect, told.reason, told.rule) == (Effect.DENY, Reason.REVOKED, "r")
    assert told.message == "a newly loaded policy ended it: no hooks"


class Asked:
    """Something under way that notes what it was told."""

    def __init__(self, order: list[str], name: str, *, ends: bool, request: Request = REQUEST) -> None:
        self.order = order
        self.name = name
        self.ends = ends
        self.request = request
        self.bound: dict[str, bool] = {}

    def judge_again(self, is_bound: IsBound) -> bool:
        """Note the call."""
        self.order.append(self.name)
        self.bound = {name: is_bound(name, self.request) for name in ("key", "gone")}
        return self.ends


def _credentials(**more: Any) -> dict[str, CredentialConfig]:
    return {"key": CredentialConfig(source=SourceConfig(env="KEY"), hosts=("api.example",), **more)}


def test_exchanges_are_asked_before_tunnels() -> None:
    """So that each is recorded by itself; what ended is counted."""
    order: list[str] = []
    seam = FakeSeam()
    seam.under_way = {Asked(order, "exchange", ends=True), Asked(order, "exchange", ends=False)}
    seam.tunnels = {Asked(order, "tunnel", ends=True)}
    assert revoke(seam, bound_by({})) == Revoked(1, 1)  # type: ignore[arg-type]
    assert order == ["exchange", "exchange", "tunnel"]


@pytest.mark.parametrize(
    ("credentials", "scheme", "bound"),
    [
        (_credentials(), "https", True),
        (_credentials(), "http", False),
        (_credentials(allow_http=True), "http", True),
        (_credentials(methods=("POST",)), "https", False),
        (_credentials(paths=("/v2/*",)), "https", False),
        ({}, "https", False),
    ],
)
def test_bound_means_what_it_means_for_new_requests(
    credentials: dict[str, CredentialConfig], scheme: str, bound: bool
) -> None:
    """Configured, for this host, method and path, and not in the clear unless that is permitted."""
    port = 443 if scheme == "https" else 80
    request = Request("1", Guest("g"), Target(scheme, "api.example", port), "GET", "/v1/x")
    asked = Asked([], "exchange", ends=False, request=request)
    seam = FakeSeam()
    seam.under_way = {asked}
    revoke(seam, bound_by(credentials))  # type: ignore[arg-type]
    assert asked.bound == {"key": bound, "gone": False}


class Broken(Asked):
    """Something that fails when it is asked."""

    def judge_again(self, is_bound: IsBound) -> bool:
        """Fail."""
        raise RuntimeError("a fault")


async def test_a_fault_with_one_spares_no_other() -> None:
    """Whatever one of them raises is reported, and the rest is judged all the same."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(str(context["exception"])))
    order: list[str] = []
    seam = FakeSeam()
    seam.under_way = {Broken(order, "broken", ends=True), *(Asked(order, "sound", ends=True) for _ in range(3))}
    assert revoke(seam, bound_by({})) == Revoked(3, 0)  # type: ignore[arg-type]
    assert (order, told) == (["sound"] * 3, ["a fault"])
