"""Price: hysteresis, one step per landing latency, bounds."""

from governor.core.price import PriceController, PriceSettings
from tests.admission_builders import SECOND


def pressed(price: PriceController, pressure: float, seconds: range) -> None:
    for second in seconds:
        price.update(pressure, second * SECOND)


def test_the_price_rises_above_the_high_mark_and_falls_below_the_low_one() -> None:
    price = PriceController(PriceSettings())
    pressed(price, 1.2, range(3))
    assert price.value == 0.75
    pressed(price, 0.8, range(3, 5))
    assert 0 < price.value < 0.75


def test_between_the_marks_the_price_stays_where_it_is() -> None:
    price = PriceController(PriceSettings())
    pressed(price, 1.2, range(2))
    before = price.value
    pressed(price, 0.94, range(2, 20))
    pressed(price, 0.86, range(20, 40))
    assert price.value == before


def test_there_is_at_most_one_step_per_landing_latency() -> None:
    price = PriceController(PriceSettings(first_latency_us=SECOND))
    steps = [price.update(1.5, at_us) for at_us in range(0, SECOND, 10_000)]
    assert steps.count(True) == 1
    assert price.update(1.5, SECOND)


def test_slow_landings_slow_the_steps() -> None:
    price = PriceController(PriceSettings(first_latency_us=SECOND))
    for _ in range(100):
        price.landed(4 * SECOND)
    assert 3 * SECOND < price.latency_us < 5 * SECOND
    steps = [price.update(1.5, second * SECOND) for second in range(10)]
    assert steps.count(True) == 3


def test_the_price_is_bounded_and_so_cannot_wind_up() -> None:
    settings = PriceSettings()
    price = PriceController(settings)
    pressed(price, 9.0, range(1_000))
    assert price.value == settings.most
    assert price.lands
    # Coming down takes as many steps as the bound allows, however long the pressure lasted.
    pressed(price, 0.0, range(1_000, 1_000 + round(settings.most / settings.step_down)))
    assert price.value < 1e-9
    assert not price.lands


def test_an_idle_pool_costs_nothing() -> None:
    price = PriceController(PriceSettings())
    pressed(price, 0.1, range(10))
    assert price.value == 0.0
