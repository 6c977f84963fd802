"""A scheduler with its workers and a ledger that grants everything at once; reading its actions."""

from collections.abc import Iterable
from typing import Any, TypeVar

from governor.core.admission import AdmissionSettings
from governor.core.dispatch import (
    Action,
    Event,
    Reserve,
    Reserved,
    SchedulerSettings,
    Scraped,
    Settled,
)
from governor.core.lease import Lease, LeaseRequest
from governor.core.placement import PlacementSettings
from governor.core.scheduler import Scheduler
from tests.admission_builders import SECOND, arrived, settlement, view

A = TypeVar("A")
NEVER_STALE = AdmissionSettings(placement=PlacementSettings(stale_after_us=10_000 * SECOND))
SETTINGS = SchedulerSettings(admission=NEVER_STALE)


def of(kind: type[A], actions: Iterable[Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def ids(kind: type[Any], actions: Iterable[Action]) -> list[str]:
    return [action.request_id for action in of(kind, actions)]


def lease_of(request: LeaseRequest, now_us: int) -> Lease:
    return Lease(
        id=f"lease of {request.request_id}",
        request_id=request.request_id,
        attempt=request.attempt,
        worker_id=request.worker_id,
        worker_epoch=request.worker_epoch,
        profile_mean=request.profile.mean_milliblocks,
        profile_var=request.profile.var,
        start_bin=request.profile.start_bin,
        area_charged=request.area_charged,
        forecast_version=request.forecast_version,
        expires_us=now_us + request.ttl_us,
        fence=1,
    )


class Driver:
    """A scheduler with its workers, and a ledger that grants everything at once."""

    def __init__(self, *blocks: int, settings: SchedulerSettings = SETTINGS) -> None:
        self.scheduler = Scheduler(settings)
        self.now_us = 0
        for index, capacity in enumerate(blocks or (100,)):
            self.send(Scraped(view(f"w{index}", capacity_blocks=capacity)))

    def send(self, event: Event, *, grant: bool = True) -> list[Action]:
        """All actions, those that follow from granted reservations included."""
        actions = list(self.scheduler.receive(event, self.now_us))
        if grant:
            for reserve in of(Reserve, list(actions)):
                lease = lease_of(reserve.lease_request, self.now_us)
                actions += self.send(Reserved(reserve.request_id, lease))
        return actions

    def arrive(self, name: str, **changes: Any) -> list[Action]:
        changes.setdefault("arrived_us", self.now_us)
        return self.send(arrived(name, **changes))

    def settle(self, name: str, area: int = 100) -> list[Action]:
        return self.send(Settled(name, settlement(area)))

    def fill(self) -> None:
        """Occupy worker `w0` until `full` is settled: 80 blocks of 100 by its prompt alone."""
        assert ids(Reserve, self.arrive("full", prompt_tokens=80 * 16)) == ["full"]
