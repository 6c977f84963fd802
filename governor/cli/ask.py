"""`governor ask`: one question, its thinking as it streams, what the governor decided."""

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from governor.cli.ask_transcript import Transcript
from governor.cli.ask_view import (
    answer_lines,
    decision_rows,
    decision_table,
    entropy_text,
    frame,
)
from governor.cli.gateway_client import ChatStream, GatewayClient, GatewayRefused, default_url

# The rows of the last tokens may still be on their way when the answer has ended.
_SIGNALS_GRACE_S = 1.0
_FRAMES_PER_S = 12

UrlOption = Annotated[
    str,
    typer.Option("--url", default_factory=default_url, help="Base URL of the gateway."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", envvar="GOVERNOR_KEY", help="The caller's key.")
]


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    url: UrlOption,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model; by default the first one served.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", "-b", min=0, help="Thinking budget in tokens.")
    ] = None,
    effort: Annotated[
        str | None, typer.Option("--effort", "-e", help="Effort word, such as low or high.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Thinking and answer together.")
    ] = None,
    key: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a question and watch the thinking. Exit 1 without an answer."""
    body = request_body(question, model, budget, effort, max_tokens)
    transcript = Transcript()
    out = Console(markup=False, highlight=False, soft_wrap=True)
    display: Display
    if as_json:
        display = Display(transcript)
    elif out.is_terminal:
        display = LiveDisplay(transcript, Console(markup=False, highlight=False))
    else:
        display = PlainDisplay(transcript, out)
    try:
        asyncio.run(_converse(url, key, body, transcript, display))
    except GatewayRefused as refused:
        _fail(refused, transcript, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(transcript.as_json(), indent=2, ensure_ascii=False))
    if transcript.error is not None:
        typer.echo(f"the stream ended with an error: {transcript.error.get('message')}", err=True)
    if transcript.error is not None or not transcript.answered:
        raise typer.Exit(1)


def request_body(
    question: str,
    model: str | None,
    budget: int | None,
    effort: str | None,
    max_tokens: int | None,
) -> dict[str, Any]:
    """The chat completion that asks for everything there is to show."""
    governor: dict[str, Any] = {"explain": True}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "governor": governor,
    }
    if model is not None:
        body["model"] = model
    if budget is not None:
        governor["budget_tokens"] = budget
    if effort is not None:
        body["reasoning_effort"] = effort
    if max_tokens is not None:
        body["max_completion_tokens"] = max_tokens
    return body


class Display:
    """Shows a transcript as it grows; this one shows nothing."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript

    def begin(self) -> None:
        """The stream is open."""

    def added(self, thinking: str, answer: str) -> None:
        """So much text came."""

    def end(self) -> None:
        """The stream is over."""


class PlainDisplay(Display):
    """Text as it comes, for pipes and logs; the facts at the end."""

    def __init__(self, transcript: Transcript, console: Console) -> None:
        super().__init__(transcript)
        self._console = console

    def added(self, thinking: str, answer: str) -> None:
        """Thinking streams; the answer comes whole at the end."""
        if thinking:
            self._console.out(thinking, end="", highlight=False)

    def end(self) -> None:
        """Answer and decision, one fact a line."""
        transcript = self.transcript
        if transcript.thinking and not transcript.thinking.endswith("\n"):
            self._console.out("")
        for line in answer_lines(transcript):
            self._console.out(f"answer: {line}", highlight=False)
        self._console.out(f"entropy: {entropy_text(transcript, 64)}", highlight=False)
        for name, value in decision_rows(transcript):
            self._console.out(f"{name}: {value}", highlight=False)


class LiveDisplay(Display):
    """A picture that is redrawn in place."""

    def __init__(self, transcript: Transcript, console: Console) -> None:
        super().__init__(transcript)
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=lambda: frame(transcript, console),
            refresh_per_second=_FRAMES_PER_S,
            transient=False,
        )

    def begin(self) -> None:
        """Start drawing."""
        self._live.start()

    def end(self) -> None:
        """The last frame stays; the decision comes below it."""
        if self._live.is_started:
            self._live.stop()
        self._console.print(decision_table(self.transcript))
        for line in answer_lines(self.transcript):
            self._console.print(Text(f"answer: {line}", style="bold"))


async def _converse(
    url: str, key: str | None, body: dict[str, Any], transcript: Transcript, display: Display
) -> None:
    """Stream completion and signals side by side until the completion ends."""
    async with GatewayClient(url, key) as gateway:
        if "model" not in body:
            body["model"] = await _first_model(gateway)
        async with gateway.chat(body) as stream:
            transcript.opened(stream.headers)
            signals = asyncio.create_task(_follow_signals(gateway, transcript))
            display.begin()
            try:
                await _follow(stream, transcript, display)
                await asyncio.wait([signals], timeout=_SIGNALS_GRACE_S)
            finally:
                signals.cancel()
                await asyncio.gather(signals, return_exceptions=True)
                display.end()


async def _follow(stream: ChatStream, transcript: Transcript, display: Display) -> None:
    async for event in stream.events():
        display.added(*transcript.event(event))
    transcript.done = stream.done
    if not stream.done and transcript.error is None:
        transcript.error = {"message": "the stream broke off before its end"}


async def _follow_signals(gateway: GatewayClient, transcript: Transcript) -> None:
    """Signals are an extra: whatever is wrong with them is told, never raised."""
    decision_id = transcript.decision_id
    if decision_id is None:
        transcript.signals_missing = "the response names no decision"
        return
    try:
        async for row in gateway.signals(decision_id):
            transcript.signal(row)
    except GatewayRefused as refused:
        transcript.signals_missing = str(refused)


async def _first_model(gateway: GatewayClient) -> str:
    models = await gateway.models()
    if not models:
        raise GatewayRefused(f"{gateway.url} serves no model")
    return models[0]


def _fail(refused: GatewayRefused, transcript: Transcript, *, as_json: bool) -> None:
    if as_json:
        error = {"message": str(refused), "code": refused.code, "status": refused.status}
        found = {**transcript.as_json(), "error": {**error, "retry_after_s": refused.retry_after_s}}
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        typer.echo(str(refused), err=True)
    raise typer.Exit(1)
