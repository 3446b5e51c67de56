"""What ends a request, and what must not."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, solo

from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.request import Request, RequestStatus
from rooftree.scheduler.stop import Stop, check_stop

STOPPED, CAPPED = RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED


def after(
    output: list[int],
    *,
    max_tokens: int = 10,
    max_model_len: int = 100,
    eos: tuple[int, ...] = (2, 3),
    **params: object,
) -> Stop | None:
    """The decision after ``output`` on a prompt of two tokens."""
    request = Request(
        request_id="r",
        token_ids=[2, 7],
        params=SamplingParams(**params),
        max_tokens=max_tokens,
        seed=0,
        eos_token_ids=eos,
    )
    request.token_ids += output
    return check_stop(request, max_model_len)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (after([5]), None),
        (after([5, 2]), Stop(STOPPED)),
        (after([5, 3]), Stop(STOPPED)),
        (after([2, 5]), None),
        (after([2], ignore_eos=True), None),
        (after([2], ignore_eos=True, stop_token_ids=(2,)), Stop(STOPPED, 2)),
        (after([2], stop_token_ids=(2,)), Stop(STOPPED)),
        (after([9], stop_token_ids=(8, 9)), Stop(STOPPED, 9)),
        (after([2], min_tokens=2), None),
        (after([5, 2], min_tokens=2), Stop(STOPPED)),
        (after([9], stop_token_ids=(9,), min_tokens=2), None),
        (after([5] * 9), None),
        (after([5] * 10), Stop(CAPPED)),
        (after([5] * 9 + [2]), Stop(STOPPED)),
        (after([5] * 3, max_model_len=6), None),
        (after([5] * 4, max_model_len=6), Stop(CAPPED)),
        (after([5], max_tokens=1), Stop(CAPPED)),
    ],
)
def test_the_decision_after_a_token(decision: Stop | None, expected: Stop | None) -> None:
    assert decision == expected


@pytest.mark.parametrize(
    "stopper",
    [
        {"eos_token_ids": (4,)},
        {"eos_token_ids": (99, 4)},
        {"params": {"stop_token_ids": (4,)}},
        {"params": {"stop_token_ids": (4,), "ignore_eos": True}},
    ],
)
def test_min_tokens_holds_back_every_stopper(stopper: dict[str, object]) -> None:
    """Case 03: nothing ends the answer, and no such token is chosen, before the twelfth."""

    def run(min_tokens: int, seed: int) -> tuple[list[int], list[str]]:
        rig = Rig()
        params = SamplingParams(min_tokens=min_tokens, **stopper.get("params", {}))
        options = {k: v for k, v in stopper.items() if k != "params"}
        rig.add("r", [1, 2, 3], max_tokens=60, params=params, seed=seed, **options)
        rig.drain()
        return rig.output("r"), rig.ends("r")

    early = 0
    for seed in range(20):
        free, _ = run(0, seed)
        early += len(free) < 12
        held, ends = run(12, seed)
        assert 4 not in held[:12]
        assert len(held) >= 12
        assert ends == (["stop"] if held[-1] == 4 else ["length"])
    assert early > 0


def test_bans_end_with_min_tokens() -> None:
    request = Request(
        request_id="r",
        token_ids=[1],
        params=SamplingParams(min_tokens=2, stop_token_ids=(9, 5)),
        max_tokens=5,
        seed=0,
        eos_token_ids=(2,),
    )
    bans = []
    for token in (7, 7, 7):
        bans.append(request.banned_token_ids)
        request.token_ids.append(token)
    assert bans == [(2, 5, 9), (2, 5, 9), ()]


def test_stop_reason_is_told() -> None:
    rig = Rig()
    first = solo(rig.add("probe", [1, 2, 3]))[0][0]
    rig.add("r", [1, 2, 3], max_tokens=9, params=SamplingParams(stop_token_ids=(first,)))
    rig.drain()
    last = [u for u in rig.updates if u.request_id == "r"][-1]
    assert (last.new_token_ids, last.finish_reason, last.stop_reason) == ([first], "stop", first)
