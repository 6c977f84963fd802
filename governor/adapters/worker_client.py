"""WorkerClient: control-plane calls to one worker over httpx: join, scrape, control.

Fails typed: every fault of the worker or the way to it is an `UpstreamFailed`. Timeout 5 s for
reads, 2 s for control.
"""

from typing import Any

import httpx

from governor.adapters.worker_metrics import parse_metrics
from governor.core.errors import (
    UpstreamConnectFailed,
    UpstreamFailed,
    UpstreamProtocolError,
    UpstreamReadFailed,
    UpstreamTimeout,
)
from governor.core.signals import Control, ControlAck, decode_ack, encode_control
from governor.core.worker_facts import WorkerInfo, WorkerScrape

CONTROL_TIMEOUT_S = 2.0
ASSUMED_BLOCK_TOKENS = 16


class WorkerClient:
    """One worker. Safe to use from several tasks of one loop."""

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        timeout_s: float = 5.0,
        control_timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._control_timeout_s = control_timeout_s
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout_s)

    async def join(self) -> WorkerInfo:
        """Capabilities: of our contract where the worker has it, else what its routes show."""
        cards = await self._models()
        names = tuple(card["id"] for card in cards)
        response = await self._get("/governor/v1/info", allow_missing=True)
        if response is not None:
            return _contract_info(_json(response), names, cards)
        scrape = await self.scrape()
        told = (card.get("max_model_len") for card in cards)
        lengths = [length for length in told if type(length) is int and length > 0]
        epoch = scrape.process_start_s if scrape.process_start_s is not None else "unknown"
        return WorkerInfo(
            worker_epoch=str(epoch),
            models=names,
            # vLLM is told by its metrics; it can return the ids of what it generates.
            features=frozenset({"return_token_ids"} if scrape.running is not None else ()),
            block_size=scrape.block_size or ASSUMED_BLOCK_TOKENS,
            num_blocks=scrape.num_blocks,
            max_model_len=min(lengths, default=None),
            model_cards=cards,
        )

    async def scrape(self) -> WorkerScrape:
        """The worker's metrics; everything unknown where it has none."""
        response = await self._get("/metrics", allow_missing=True)
        return WorkerScrape() if response is None else parse_metrics(response.text)

    async def control(self, control: Control) -> ControlAck:
        """Send one instruction; repeated once where the connection failed before an answer."""
        body = encode_control(control)
        try:
            return await self._control(body)
        except (UpstreamConnectFailed, UpstreamReadFailed):
            return await self._control(body)

    async def _control(self, body: dict[str, Any]) -> ControlAck:
        try:
            response = await self._client.post(
                "/governor/v1/control", json=body, timeout=self._control_timeout_s
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _typed(error) from error
        if response.status_code != 200:
            raise UpstreamProtocolError(f"control answered {response.status_code}")
        return decode_ack(_json(response))

    async def _models(self) -> tuple[dict[str, Any], ...]:
        response = await self._get("/v1/models")
        assert response is not None
        cards = _json(response).get("data")
        if not isinstance(cards, list) or not all(
            isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards
        ):
            raise UpstreamProtocolError("/v1/models is not a list of models")
        return tuple(cards)

    async def _get(self, path: str, *, allow_missing: bool = False) -> httpx.Response | None:
        try:
            response = await self._client.get(path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _typed(error) from error
        if allow_missing and response.status_code in (404, 405):
            return None
        if response.status_code != 200:
            raise UpstreamProtocolError(f"{path} answered {response.status_code}")
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _contract_info(
    info: dict[str, Any], names: tuple[str, ...], cards: tuple[dict[str, Any], ...]
) -> WorkerInfo:
    try:
        return WorkerInfo(
            worker_epoch=str(info["worker_epoch"]),
            models=names,
            features=frozenset(info["features"]),
            think_start_ids=tuple(info["think_start_ids"]),
            think_end_ids=tuple(info["think_end_ids"]),
            wrap_up_text=info["wrap_up_text"],
            wrap_up_ids=tuple(info["wrap_up_ids"]),
            block_size=int(info["block_size"]),
            num_blocks=int(info["num_blocks"]),
            max_model_len=int(info["max_model_len"]),
            max_num_seqs=int(info["max_num_seqs"]),
            kv_bytes_per_token=int(info["kv_bytes_per_token"]),
            stream_interval=int(info["stream_interval"]),
            model_cards=cards,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UpstreamProtocolError(f"/governor/v1/info is incomplete: {error!r}") from error


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except (ValueError, RecursionError) as error:
        raise UpstreamProtocolError(f"{response.url.path} is not JSON") from error
    if not isinstance(found, dict):
        raise UpstreamProtocolError(f"{response.url.path} is not an object")
    return found


def _typed(error: httpx.HTTPError | httpx.InvalidURL) -> UpstreamFailed:
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return UpstreamConnectFailed(detail)
    if isinstance(error, httpx.TimeoutException):
        return UpstreamTimeout(detail)
    return UpstreamReadFailed(detail)
