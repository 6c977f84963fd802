"""The worker's queue as the core sees it: waiting for memory counts, normal deferral does not."""

import pytest

from governor.core.worker_facts import WorkerInfo, WorkerScrape
from governor.services.fleet_watch import Pace, view_of


@pytest.mark.parametrize(
    ("scrape", "waiting"),
    [
        pytest.param(WorkerScrape(waiting=5, waiting_capacity=2), 2, id="split by reason"),
        pytest.param(WorkerScrape(waiting=3, waiting_capacity=0), 0, id="only deferred"),
        pytest.param(WorkerScrape(waiting=3), 3, id="engine does not split"),
        pytest.param(WorkerScrape(), None, id="unknown"),
        pytest.param(None, None, id="never scraped"),
    ],
)
def test_only_requests_that_wait_for_memory_count_as_waiting(
    scrape: WorkerScrape | None, waiting: int | None
) -> None:
    view = view_of("w1", WorkerInfo("e1", ("m",)), scrape, Pace(), now_us=7)
    assert view.waiting == waiting
