"""PromptSizes: tokens from bytes, learnt per model, robust against what is no text."""

from governor.gateway.prompt_size import MEMORY_TOKENS, TEMPLATE_TOKENS, PromptSizes


def test_before_any_measurement_english_text_is_assumed() -> None:
    assert PromptSizes().estimate("m", 4_000) == 1_000 + TEMPLATE_TOKENS
    assert PromptSizes().estimate("m", 0) == TEMPLATE_TOKENS > 0


def test_the_models_own_ratio_is_learnt() -> None:
    sizes = PromptSizes()
    for _ in range(40):
        sizes.learn("bytes", 100, 100 + TEMPLATE_TOKENS)
    assert 100 <= sizes.estimate("bytes", 100) <= 120
    assert sizes.estimate("another", 100) == 25 + TEMPLATE_TOKENS, "models do not share"


def test_one_long_prompt_counts_for_more_than_one_short_one() -> None:
    short, long = PromptSizes(), PromptSizes()
    short.learn("m", 20, 10)
    long.learn("m", 20_000, 10_000)
    assert short.estimate("m", 4_000) < 1_050
    assert long.estimate("m", 4_000) > 1_900


def test_a_greeting_in_a_template_does_not_make_a_long_text_seem_longer() -> None:
    """2 bytes became 30 tokens: 28 of them are the template's."""
    sizes = PromptSizes()
    sizes.learn("m", 2, 30)
    assert sizes.estimate("m", 4_000) < 1_100


def test_however_wrong_the_measurements_the_estimate_stays_plausible() -> None:
    sizes = PromptSizes()
    for _ in range(500):
        sizes.learn("images", 3, 5_000)
        sizes.learn("other", 10**9, 10)
    assert sizes.estimate("images", 1_000) <= 2_000 + TEMPLATE_TOKENS
    assert sizes.estimate("other", 32_000) >= 1_000


def test_what_says_nothing_is_not_learnt() -> None:
    sizes = PromptSizes()
    sizes.learn("m", 0, 100)
    sizes.learn("m", 100, 0)
    sizes.learn("m", 100, -3)
    assert sizes.estimate("m", 4_000) == PromptSizes().estimate("m", 4_000)


def test_the_number_of_models_is_bounded() -> None:
    sizes = PromptSizes(most_models=2)
    for name in ("a", "b", "c"):
        sizes.learn(name, int(MEMORY_TOKENS) * 1_000, int(MEMORY_TOKENS) * 1_000)
    assert [sizes.estimate(name, 1_000) > 500 for name in ("a", "b", "c")] == [True, True, False]
