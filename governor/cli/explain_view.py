"""How one decision looks in a terminal: result, forecast, grant, candidates, outcome. Fetches and
decides nothing."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from governor.core.outcomes import Reason
from governor.core.placement import Candidate
from governor.core.record import DecisionRecord, disagreements

_QUANTILES = (0.1, 0.5, 0.9, 0.99)


def explanation(found: dict[str, Any], record: DecisionRecord | None) -> RenderableType:
    """Everything that is kept of a decision."""
    parts: list[RenderableType] = []
    if record is None:
        parts.append(Text(f"decision {found.get('decision_id')}: no record was kept"))
    else:
        parts += [
            _facts(f"decision {record.id}", decided_rows(record)),
            _forecast_table(record),
            _facts("grant", grant_rows(record)),
            _candidates_table(record),
        ]
    outcome = found.get("outcome")
    if outcome is None:
        parts.append(Text("outcome: none, the request has not ended"))
    else:
        parts.append(_facts("outcome", list(outcome_rows(outcome))))
    return Group(*parts)


def decided_rows(record: DecisionRecord) -> list[tuple[str, str]]:
    """What was decided, for whom, why, and whether the record gives the same decision again."""
    demand = record.demand
    result = f"{record.result}: {record.reason}"
    if record.worker_id is not None:
        result += f", on {record.worker_id}"
    if record.retry_after_us is not None:
        result += f", back in {record.retry_after_us / 1e6:.1f} s"
    kind = "tokens" if demand.prompt_tokens_exact else "tokens (estimated)"
    differing = disagreements(record)
    asked = "nothing"
    if demand.ask.budget_tokens is not None:
        asked = f"{demand.ask.budget_tokens} tokens"
    elif demand.ask.effort is not None:
        asked = f"effort {demand.ask.effort}"
    return [
        ("result", result),
        ("tenant", f"{demand.tenant}, priority {demand.priority.name.lower()}"),
        ("model", demand.model),
        ("prompt", f"{demand.prompt_tokens} {kind}"),
        ("asked", asked),
        ("mode", f"{record.policy.mode} for {record.policy.mode_percent:g}% of requests"),
        ("forecast area", f"{record.area} token²"),
        ("tenant in flight", str(record.usage.in_flight)),
        ("policy", record.policy_hash),
        ("code", record.code_version),
        ("replay", f"differs in {', '.join(differing)}" if differing else "the same decision"),
    ]


def grant_rows(record: DecisionRecord) -> list[tuple[str, str]]:
    """What the request may think, and why that much."""
    grant = record.grant
    if grant.thinking_off:
        tokens = "no thinking"
    elif grant.thinking_tokens is None:
        tokens = "no budget"
    else:
        tokens = f"{grant.thinking_tokens} tokens"
    floor = "unknown" if grant.floor_tokens is None else f"{grant.floor_tokens} tokens"
    rows = [
        ("thinking", f"{tokens} ({grant.reason}, {grant.strictness})"),
        ("grace, wrap-up", f"{grant.grace_tokens}, {grant.wrap_up_tokens} tokens"),
        ("answer reserve", f"{grant.answer_reserve_tokens} tokens"),
        ("completion limit", _count(grant.completion_tokens, "none")),
        ("safe-cut floor", floor + (", which the budget is below" if grant.below_floor else "")),
        ("price of KV", f"{record.grant_inputs.price:.3f}"),
    ]
    if grant.unlanded:
        rows.append(("unlanded", "yes: one of the share that no early exit may land"))
    return rows


def outcome_rows(outcome: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every member of an outcome, nested ones with their path. Null is unknown or absent."""
    for name, value in outcome.items():
        if isinstance(value, dict):
            yield from outcome_rows(value, f"{prefix}{name}.")
        else:
            yield prefix + name.replace("_", " "), "-" if value is None else str(value)


def candidate_cells(candidate: Candidate, record: DecisionRecord) -> tuple[str, ...]:
    """Worker, predicted peak, limit, share, requests in flight, verdict."""
    view = candidate.load.view
    share = "-"
    if candidate.peak_milliblocks is not None and candidate.limit_milliblocks:
        share = f"{candidate.peak_milliblocks / candidate.limit_milliblocks:.0%}"
    verdict = candidate.reason.value
    if view.worker_id == record.worker_id:
        verdict += ", chosen"
    return (
        view.worker_id,
        _blocks(candidate.peak_milliblocks),
        _blocks(candidate.limit_milliblocks),
        _count(view.capacity_blocks, "unknown"),
        share,
        str(candidate.load.in_flight),
        verdict,
    )


def _candidates_table(record: DecisionRecord) -> RenderableType:
    if not record.candidates:
        return Text("candidates: none")
    table = Table(title="candidates, in blocks of KV", title_justify="left")
    table.add_column("worker", overflow="fold")
    for name in ("peak", "limit", "capacity", "of limit", "in flight"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for candidate in record.candidates:
        chosen = candidate.load.view.worker_id == record.worker_id
        style = "bold" if chosen else "" if candidate.reason is Reason.FITS else "dim"
        table.add_row(*candidate_cells(candidate, record), style=style)
    return table


def _forecast_table(record: DecisionRecord) -> RenderableType:
    forecast = record.forecast
    basis = "a prior, for want of evidence" if forecast.fallback else forecast.artefact
    title = f"forecast by {basis}; loop probability {forecast.loop_probability:.1%}"
    table = Table()
    table.add_column("tokens")
    for share in _QUANTILES:
        table.add_column(f"{share:.0%}", justify="right")
    for name, survival in (("thinking", forecast.natural), ("answer", forecast.answer)):
        table.add_row(name, *(str(survival.quantile(share)) for share in _QUANTILES))
    return Group(Text(title), table)


def _facts(title: str, rows: list[tuple[str, str]]) -> RenderableType:
    """A two-column table; its title stands above it, since rich folds one to the table's width."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return Group(Text(title), table)


def _blocks(milliblocks: int | None) -> str:
    return "-" if milliblocks is None else f"{milliblocks / 1000:.1f}"


def _count(value: int | None, absent: str) -> str:
    return absent if value is None else str(value)
