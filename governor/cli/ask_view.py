"""How an answer looks while it grows and when it is there. Draws; fetches and decides nothing."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from governor.cli.ask_transcript import Transcript

_BARS = "▁▂▃▄▅▆▇█"
# Natural logarithm of 2, two equally likely tokens, is the least that fills the height: else the
# noise of a model that is sure of itself would look like doubt.
_LEAST_SCALE_NATS = 0.7
_BAR_WIDTH = 32
# Lines of the frame that are not thinking: two panels' borders, answer, bar and sparkline.
_OTHER_LINES = 9
_MISSING = "missing"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` figures as bars from 0 to the greatest; a missing one is a gap, never 0."""
    shown = values[-width:] if width > 0 else ()
    known = [value for value in shown if value is not None]
    top = max([_LEAST_SCALE_NATS, *known])
    last = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[min(last, max(0, round(value / top * last)))]
        for value in shown
    )


def entropy_text(transcript: Transcript, width: int) -> str:
    """The entropy line: a sparkline and the last figure, or `missing` with its reason."""
    known = [value for value in transcript.entropies if value is not None]
    if not known:
        why = transcript.signals_missing
        return _MISSING if why is None else f"{_MISSING} ({why})"
    line = sparkline(transcript.entropies, max(8, width - 24))
    return f"{line} {known[-1]:.2f} nats"


def used_text(transcript: Transcript) -> str:
    """Used and granted tokens in words; `~` marks a count of chunks."""
    used = f"{'' if transcript.used_exact else '~'}{transcript.used_tokens}"
    granted = transcript.granted_tokens
    return f"{used} tokens, no budget" if granted is None else f"{used} of {granted} tokens"


def frame(transcript: Transcript, console: Console) -> RenderableType:
    """The live picture: thinking, budget, entropy, answer."""
    height = max(3, console.height - _OTHER_LINES)
    width = max(20, console.width - 4)
    parts: list[RenderableType] = []
    if transcript.thinking:
        parts.append(Panel(_tail(transcript.thinking, width, height), title="thinking"))
    facts = Table.grid(padding=(0, 1))
    facts.add_row("budget", _bar(transcript), used_text(transcript))
    parts.append(facts)
    parts.append(Text(f"entropy {entropy_text(transcript, width)}", no_wrap=True))
    if transcript.answer.strip():
        parts.append(Panel(Text(transcript.answer.strip()), title="answer", style="bold"))
    return Group(*parts)


def _bar(transcript: Transcript) -> RenderableType:
    granted = transcript.granted_tokens
    if not granted:
        return Text("")
    return ProgressBar(
        total=granted, completed=min(transcript.used_tokens, granted), width=_BAR_WIDTH
    )


def _tail(text: str, width: int, height: int) -> Text:
    """The last lines of a text that fit."""
    rows: list[str] = []
    for line in text.strip("\n").split("\n"):
        rows += [line[at : at + width] for at in range(0, max(1, len(line)), width)]
    return Text("\n".join(rows[-height:]), style="dim")


def decision_rows(transcript: Transcript) -> list[tuple[str, str]]:
    """What the governor decided, as name and value. Without its block only what headers say."""
    block: dict[str, Any] = transcript.governor or {}
    headers = transcript.headers

    def told(key: str, header: str = "") -> str | None:
        value = block.get(key, headers.get(header))
        return None if value is None else str(value)

    granted = told("granted_tokens", "x-governor-budget-granted") or "no budget"
    if block.get("thinking_off"):
        granted = "no thinking"
    reason = told("granted_reason", "x-governor-budget-reason")
    landed = block.get("landed")
    queued = told("queued_ms", "x-governor-queue-ms")
    path = told("landing_path")
    rows = [
        ("decision", told("decision_id", "x-governor-decision") or "unknown"),
        ("mode", told("mode", "x-governor-mode") or "unknown"),
        ("asked", told("asked_tokens", "x-governor-budget-asked") or "nothing"),
        ("granted", granted if reason is None else f"{granted} ({reason})"),
        ("path", told("budget_path", "x-governor-budget-path") or "unknown"),
        ("used", used_text(transcript)),
        ("cause", told("cause") or "unknown"),
        ("landed", "no" if landed is None else f"yes, {landed}"),
        ("queued", "unknown" if queued is None else f"{queued} ms"),
        ("forecast", _forecast(block)),
    ]
    if landed is not None and path not in (None, "none"):
        rows[7] = ("landed", f"yes, {landed} (by {path})")
    if not block:
        rows[6:8] = [("cause", "unknown: the response has no governor block")]
    notes = block.get("notes") or headers.get("x-governor-notes")
    if notes:
        rows.append(("notes", "; ".join(notes) if isinstance(notes, list) else str(notes)))
    return rows


def _forecast(block: dict[str, Any]) -> str:
    half, most = block.get("forecast_p50_tokens"), block.get("forecast_p90_tokens")
    if half is None or most is None:
        return "unknown"
    prior = ", a prior without evidence" if block.get("forecast_fallback") else ""
    return f"{half} tokens in half of the cases, {most} in 90 %{prior}"


def decision_table(transcript: Transcript) -> Table:
    """The same as a table."""
    table = Table(title="what the governor decided", title_justify="left", show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in decision_rows(transcript):
        table.add_row(name, Text(value))
    return table


def answer_lines(transcript: Transcript) -> list[str]:
    """The answer: text, tool calls, or that there is none."""
    lines = [transcript.answer.strip()] if transcript.answer.strip() else []
    for index in sorted(transcript.tool_calls):
        call = transcript.tool_calls[index]
        lines.append(f"{call['name']}({call['arguments']})")
    return lines or ["(no answer)"]
