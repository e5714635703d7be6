"""Laws of the batch scheduler: whatever comes, the pool holds and everyone is served."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.simulator.scheduler import Limits, Rank, Request


def request(number, prompt, wanted, stops, ignore_eos):
    return Request(
        rid=str(number),
        prompt_tokens=prompt,
        max_new_tokens=wanted,
        stops_after=wanted if ignore_eos else min(stops, wanted),
        ignore_eos=ignore_eos,
        arrival_s=0.0,
    )


requests = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 120), st.integers(1, 120), st.booleans()), min_size=1, max_size=25
)
limits = st.builds(
    Limits,
    pool_tokens=st.sampled_from([512, 1024, 8192]),
    page_tokens=st.sampled_from([1, 16]),
    running_requests=st.sampled_from([1, 3, 64]),
    prefill_chunk_tokens=st.sampled_from([0, 64, 256]),
    prefill_tokens=st.just(512),
    conservativeness=st.sampled_from([0.0, 0.3, 1.0]),
)


@given(requests, limits)
@settings(max_examples=150, deadline=None)
def test_every_request_gets_all_its_tokens_and_the_pool_never_overflows(wanted, bounds):
    rank = Rank(bounds)
    waiting = [request(number, *facts) for number, facts in enumerate(wanted)]
    rank.waiting.extend(waiting)
    received = dict.fromkeys((r.rid for r in waiting), 0)
    for _ in range(200_000):
        if not rank.has_work:
            break
        plan = rank.plan()
        assert 0 <= rank.used_tokens <= bounds.pool_tokens
        assert rank.num_running <= bounds.running_requests
        if bounds.prefill_chunk_tokens > 0:
            assert plan.load.prefill_tokens <= bounds.prefill_chunk_tokens
        assert plan.load.tokens > 0 or plan.retraction is not None
        for r in rank.commit(plan):
            received[r.rid] += 1
    assert not rank.has_work
    assert rank.used_tokens == 0
    for r in waiting:
        assert received[r.rid] == r.output_tokens
        if r.finish_reason["type"] == "abort":
            # Only one that does not fit even alone is given up.
            assert r.prompt_tokens + r.output_tokens + bounds.page_tokens > bounds.pool_tokens
        else:
            assert r.output_tokens == r.stops_after


@given(st.integers(2, 40), st.integers(1, 100))
def test_output_that_must_come_is_never_retracted(count, wanted):
    rank = Rank(
        Limits(
            pool_tokens=1000,
            page_tokens=1,
            running_requests=100,
            prefill_chunk_tokens=256,
            prefill_tokens=512,
            conservativeness=0.0,
        )
    )
    rank.waiting.extend(request(number, 100, wanted, wanted, ignore_eos=True) for number in range(count))
    while rank.has_work:
        plan = rank.plan()
        assert plan.retraction is None
        rank.commit(plan)


def test_a_prompt_longer_than_a_chunk_is_prefilled_in_chunks_and_then_decoded():
    rank = Rank(
        Limits(
            pool_tokens=10_000,
            page_tokens=1,
            running_requests=10,
            prefill_chunk_tokens=1000,
            prefill_tokens=16384,
            conservativeness=1.0,
        )
    )
    rank.waiting.append(request(0, 2500, 3, 3, ignore_eos=True))
    steps = []
    while rank.has_work:
        plan = rank.plan()
        steps.append((plan.load.prefill_tokens, len(plan.decode), len(rank.commit(plan))))
    assert steps == [(1000, 0, 0), (1000, 0, 0), (500, 0, 1), (0, 1, 1), (0, 1, 1)]


def test_a_request_that_is_dropped_in_the_middle_of_a_step_gets_nothing_and_frees_its_place():
    rank = Rank(
        Limits(
            pool_tokens=1000,
            page_tokens=1,
            running_requests=10,
            prefill_chunk_tokens=0,
            prefill_tokens=512,
            conservativeness=1.0,
        )
    )
    gone, stays = (request(number, 10, 5, 5, ignore_eos=True) for number in range(2))
    rank.waiting.extend([gone, stays])
    plan = rank.plan()
    gone.finish_reason = {"type": "abort"}
    rank.drop(gone)
    assert rank.commit(plan) == [stays]
    assert rank.used_tokens == 10
