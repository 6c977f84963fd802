"""Pool: reconciliation of scrapes with own leases, epochs, and what is learned from both."""

from typing import Any

from governor.core.overcommit import OvercommitSettings
from governor.core.pool import Hold, Pool
from governor.core.price import PriceSettings
from tests.admission_builders import SECOND, running_profile, view

STALE_US = 3 * SECOND


def pool(**changes: Any) -> Pool:
    return Pool(view(**changes), OvercommitSettings(), PriceSettings())


def hold(name: str, *, tokens: int = 160, now_us: int = 0, long: bool = False) -> Hold:
    return Hold(name, running_profile(tokens, now_us), long, 0, 1, tokens, 0, now_us)


def test_what_runs_is_in_the_load_and_leaves_it_when_released() -> None:
    worker = pool()
    worker.take(hold("a"))
    worker.take(hold("b", long=True))
    load = worker.load(0, STALE_US)
    assert load.in_flight == 2
    assert load.sums.count == 2
    assert load.long_sums.count == 1
    worker.release("a")
    worker.release("b")
    worker.release("b")
    load = worker.load(0, STALE_US)
    assert (load.in_flight, load.sums.count, load.long_sums.count) == (0, 0, 0)
    assert not any(load.sums.mean)


def test_usage_that_own_leases_do_not_explain_is_external_load() -> None:
    worker = pool()
    worker.take(hold("a"))
    # After 80 ms `a` has 80 tokens, five blocks, and one block of tolerance.
    worker.scraped(view(scraped_us=80_000, kv_used_blocks=36, running=4), 80_000)
    assert worker.load(80_000, STALE_US).external_blocks == 30
    worker.scraped(view(scraped_us=90_000, kv_used_blocks=5, running=1), 90_000)
    assert worker.load(90_000, STALE_US).external_blocks == 0


def test_unknown_usage_changes_nothing_and_a_stale_one_is_not_counted() -> None:
    worker = pool()
    worker.scraped(view(scraped_us=1, kv_used_blocks=30), 1)
    worker.scraped(view(scraped_us=2, kv_used_blocks=None), 2)
    assert worker.load(2, STALE_US).external_blocks == 30
    assert worker.load(2 + 4 * SECOND, STALE_US).external_blocks == 0


def test_the_engine_queue_is_extrapolated_by_what_was_sent_since() -> None:
    worker = pool(waiting=1)
    worker.take(hold("a"))
    worker.take(hold("b"))
    assert worker.load(0, STALE_US).waiting == 3
    worker.scraped(view(waiting=0, scraped_us=1), 1)
    worker.take(hold("c"))
    assert worker.load(1, STALE_US).waiting == 0
    worker.scraped(view(waiting=None, scraped_us=2), 2)
    assert worker.load(2, STALE_US).waiting is None


def test_a_restarted_engine_holds_nothing_of_ours() -> None:
    worker = pool()
    worker.take(hold("a"))
    worker.scraped(view(epoch="e2", bin_us=20_000, scraped_us=5), 5)
    load = worker.load(5, STALE_US)
    assert (load.in_flight, load.sums.count, load.view.bin_us) == (0, 0, 20_000)
    worker.release("a")
    assert worker.load(5, STALE_US).sums.count == 0


def test_the_bin_width_is_fixed_for_an_epoch() -> None:
    worker = pool()
    worker.take(hold("a"))
    worker.scraped(view(bin_us=99_000, us_per_token=2_000, scraped_us=5), 5)
    assert worker.view.bin_us == 10_000
    assert worker.view.us_per_token == 2_000


def test_a_swapped_profile_replaces_the_old_one() -> None:
    worker = pool()
    worker.take(hold("a", tokens=320, long=True))
    assert worker.swap("a", running_profile(16), 10, 0)
    load = worker.load(0, STALE_US)
    assert load.sums.mean == load.long_sums.mean == running_profile(16).mean_milliblocks
    assert not worker.swap("b", running_profile(16), 10, 0)


def test_preemptions_raise_z() -> None:
    worker = pool()
    before = worker.load(0, STALE_US).z
    for second in range(1, 6):
        worker.take(hold(f"r{second}"))
        worker.scraped(view(preemptions=second * 3, scraped_us=second), second)
    assert worker.load(6, STALE_US).z > before


def test_a_reset_counter_is_not_a_negative_number_of_preemptions() -> None:
    worker = pool(preemptions=1_000)
    worker.take(hold("a"))
    worker.scraped(view(preemptions=0, scraped_us=1), 1)
    worker.scraped(view(preemptions=None, scraped_us=2), 2)
    assert worker.load(3, STALE_US).z == pool().load(3, STALE_US).z


def test_the_set_present_at_a_scrape_is_compared_with_its_prediction_at_its_peak() -> None:
    worker = pool()
    for index in range(4):
        worker.take(hold(f"r{index}"))
    worker.scraped(view(scraped_us=1, kv_used_blocks=None), 1)
    worker.take(hold("later"))
    assert worker.overcommit.observed == 0
    worker.scraped(view(scraped_us=150_000, kv_used_blocks=None), 150_000)
    assert worker.overcommit.observed == 1
    assert worker.overcommit.exceedances == 0


def test_a_set_that_outgrows_its_prediction_is_an_exceedance() -> None:
    worker = pool()
    # Predicted to end after 50 tokens, but the stream goes on and reports 400.
    short = Hold("a", running_profile(50), False, 0, 1, None, 0, 0)
    worker.take(short)
    worker.scraped(view(scraped_us=1, kv_used_blocks=None), 1)
    short.generated_tokens = 400
    worker.scraped(view(scraped_us=41_000, kv_used_blocks=None), 41_000)
    assert worker.overcommit.exceedances == 1


def test_persistent_disagreement_without_others_makes_a_concurrency_limiter() -> None:
    worker = pool()
    worker.take(hold("a"))
    worker.take(hold("b"))
    for at_us in range(1, 7):
        worker.scraped(view(scraped_us=at_us, kv_used_blocks=70, running=2), at_us)
    assert worker.load(7, STALE_US).concurrency_limit is not None
    shared = pool()
    shared.take(hold("a"))
    for at_us in range(1, 7):
        shared.scraped(view(scraped_us=at_us, kv_used_blocks=70, running=9), at_us)
    assert shared.load(7, STALE_US).concurrency_limit is None


def test_a_scrape_that_is_not_newer_teaches_nothing() -> None:
    worker = pool()
    worker.take(hold("a"))
    for _ in range(10):
        worker.scraped(view(scraped_us=0, kv_used_blocks=70, running=1), 5)
    assert worker.load(5, STALE_US).concurrency_limit is None
