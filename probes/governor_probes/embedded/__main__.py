"""`python -m governor_probes.embedded`: reads the command line and serves until a signal."""

import argparse
import asyncio
import dataclasses
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from governor_probes.embedded.server import build_app
from governor_probes.embedded.settings import WorkerSettings
from governor_probes.embedded.signal_feed import SignalFeed

_HELP = {
    "model": "directory of a Hugging Face model",
    "served_model_name": "name that requests use",
    "num_blocks": "blocks of the KV pool",
    "block_size": "tokens per block",
    "max_num_seqs": "most requests running at once",
    "max_model_len": "most tokens of prompt and output together",
    "max_batch_tokens": "most prompt tokens computed in one step",
    "stream_interval": "output tokens per streamed chunk",
    "signal_interval": "output tokens per signal row",
    "reasoning_end_str": "text that ends thinking; \\n stands for a newline",
    "think_start": "tag that opens thinking",
    "think_end": "tag that closes thinking",
    "seed": "seed of requests that bring none",
    "threads": "torch threads",
    "drain_s": "seconds that open streams get after SIGTERM",
}


class WorkerServer(uvicorn.Server):
    """Ends with exit status 0 on SIGTERM and SIGINT, signal feeds first, streams drained."""

    def __init__(self, config: uvicorn.Config, feed: SignalFeed) -> None:
        super().__init__(config)
        self._feed = feed

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handlers for the time of serving; unlike uvicorn's they do not raise the signal again."""
        caught = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops accepting; a second signal does not wait for streams."""
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon(self._feed.close)


def parse_settings(arguments: list[str] | None = None) -> WorkerSettings:
    """Command line to settings; wrong values end the process with a message."""
    parser = argparse.ArgumentParser(prog="python -m governor_probes.embedded", description=__doc__)
    for field in dataclasses.fields(WorkerSettings):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=type(field.default) if not isinstance(field.default, Path) else Path,
            default=field.default,
            help=_HELP.get(field.name),
        )
    values = vars(parser.parse_args(arguments))
    values["reasoning_end_str"] = values["reasoning_end_str"].replace("\\n", "\n")
    try:
        return WorkerSettings(**values)
    except ValueError as error:
        parser.error(str(error))


def main() -> None:
    """Serves. On SIGTERM: no new connections, open streams get `--drain-s` seconds, exit 0."""
    settings = parse_settings()
    app = build_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=settings.drain_s,
    )
    WorkerServer(config, app.state.worker.feed).run()


if __name__ == "__main__":
    main()
