"""`python -m governor_probes.embedded`: reads the command line and serves until SIGTERM or SIGINT."""

import argparse
import dataclasses
from pathlib import Path

import uvicorn

from governor_probes.embedded.server import build_app
from governor_probes.embedded.settings import WorkerSettings

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
}


def parse_settings(arguments: list[str] | None = None) -> WorkerSettings:
    """Command line to settings; wrong values end the process with a message."""
    parser = argparse.ArgumentParser(prog="python -m governor_probes.embedded", description=__doc__)
    for field in dataclasses.fields(WorkerSettings):
        kind = {int: int, str: str, Path: Path}[field.type]  # type: ignore[index]
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=kind,
            default=field.default,
            help=_HELP.get(field.name),
        )
    parser.add_argument("--drain-s", type=int, default=5, help="seconds to drain after SIGTERM")
    values = vars(parser.parse_args(arguments))
    values.pop("drain_s")
    values["reasoning_end_str"] = values["reasoning_end_str"].replace("\\n", "\n")
    try:
        return WorkerSettings(**values)
    except ValueError as error:
        parser.error(str(error))


def main() -> None:
    """Serves. On SIGTERM: no new connections, open streams get `--drain-s` seconds, then exit 0."""
    settings = parse_settings()
    app = build_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
