"""Fleet view: staleness, bin widths, who serves what."""

import pytest

from governor.core.fleet import FleetView, WorkerLoad, bin_us_for
from tests.admission_builders import SECOND, view


@pytest.mark.parametrize(
    ("scraped_us", "stale"), [(None, True), (0, True), (7 * SECOND, False), (10 * SECOND, False)]
)
def test_metrics_are_stale_when_old_or_absent(scraped_us: int | None, stale: bool) -> None:
    assert view(scraped_us=scraped_us).is_stale(10 * SECOND, 3 * SECOND) is stale


@pytest.mark.parametrize(("tokens", "pace"), [(2_048, 2_000), (2_048, 10_000), (32_768, 30_000)])
def test_64_bins_span_the_longest_request_and_not_much_more(tokens: int, pace: int) -> None:
    width = bin_us_for(tokens, pace)
    assert tokens * pace <= 64 * width < tokens * pace + 64


def test_only_workers_that_serve_the_model_are_candidates() -> None:
    fleet = FleetView((WorkerLoad(view("a")), WorkerLoad(view("b", models=("other",)))))
    assert [load.view.worker_id for load in fleet.serving("m")] == ["a"]


@pytest.mark.parametrize(
    "changes", [{"block_size": 0}, {"us_per_token": 0}, {"bin_us": 0}, {"capacity_blocks": -1}]
)
def test_senseless_workers_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        view(**changes)
