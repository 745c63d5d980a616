"""Verdicts and their fold: what is forgotten denies, one denial outweighs everything, order does not matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import Reason, SeamgateError
from seamgate.verdict import NO_OPINION, Effect, Verdict, allow, denial_of, deny, fold

VERDICTS = st.sampled_from(
    [None, allow("a"), allow("b"), deny("no"), deny("never", rule="d"), Verdict(Effect.DEFER, Reason.ALLOWED, "later")]
)


def test_denial_is_zero() -> None:
    """The default verdict denies; so does the fold of nothing."""
    assert int(Effect.DENY) == 0
    assert Verdict().effect is Effect.DENY
    assert fold([]) is fold([None, None]) is NO_OPINION
    assert not NO_OPINION.allowed


def test_a_deferral_is_no_allow() -> None:
    """DEFER is not allowed, and beats an allow."""
    later = Verdict(Effect.DEFER, Reason.ALLOWED)
    assert not later.allowed
    assert fold([allow(), later]).effect is Effect.DEFER


def test_an_error_denies_with_its_reason() -> None:
    """What went wrong is the reason."""
    verdict = denial_of(SeamgateError("x", reason=Reason.AUDIT_UNAVAILABLE))
    assert (verdict.effect, verdict.reason, verdict.message) == (Effect.DENY, Reason.AUDIT_UNAVAILABLE, "x")


@given(verdicts=st.lists(VERDICTS, max_size=8), seed=st.randoms())
def test_the_effect_does_not_depend_on_order(verdicts: list[Verdict | None], seed: object) -> None:
    """Any order gives the same effect: the smallest of all opinions, denial if there is none."""
    shuffled = list(verdicts)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    opinions = [verdict.effect for verdict in verdicts if verdict is not None]
    assert fold(shuffled).effect == fold(verdicts).effect == min(opinions, default=Effect.DENY)


@given(verdicts=st.lists(VERDICTS, max_size=8))
def test_a_denial_more_never_allows(verdicts: list[Verdict | None]) -> None:
    """Adding a denial denies, wherever it stands."""
    for place in range(len(verdicts) + 1):
        assert fold([*verdicts[:place], deny("x"), *verdicts[place:]]).effect is Effect.DENY


def test_every_reason_has_a_status_and_a_text() -> None:
    """Codes are stable words; each is a 4xx or 5xx but the one that is no refusal."""
    for reason in Reason:
        assert reason.text.endswith(".")
        assert reason.value == reason.value.lower()
        assert reason.status == 200 if reason is Reason.ALLOWED else 400 <= reason.status < 600
