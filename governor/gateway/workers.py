"""Workers as this process knows them: address, connections, capabilities, view, live signal
feed."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from governor.core.fleet import WorkerView
from governor.core.worker_facts import WorkerInfo
from governor.gateway.plan import WorkerFacts
from governor.gateway.upstream import UpstreamPool
from governor.services.fleet_watch import ASSUMED_US_PER_TOKEN


@dataclass(slots=True)
class Worker:
    """One KV pool. `info` is None until the worker was joined for the first time."""

    worker_id: str
    url: str
    pool: UpstreamPool
    key: str | None = None
    info: WorkerInfo | None = None
    view: WorkerView | None = None
    signals_alive: bool = False
    last_error: str | None = None
    path_prefix: str = ""

    def facts(self) -> WorkerFacts:
        """What a plan needs to know."""
        info = self.info
        return WorkerFacts(
            worker_id=self.worker_id,
            features=frozenset(info.features) if info is not None else frozenset(),
            think_end_ids=tuple(info.think_end_ids) if info is not None else (),
            wrap_up_tokens=len(info.wrap_up_ids) if info is not None else 0,
            us_per_token=self.view.us_per_token if self.view else ASSUMED_US_PER_TOKEN,
            signals_alive=self.signals_alive,
        )

    def request_head(
        self, method: str, target: str, body_length: int, headers: dict[str, str]
    ) -> bytes:
        """The HTTP request head for this worker; the client's credentials are not among
        `headers`."""
        lines = [f"{method} {self.path_prefix}{target} HTTP/1.1", f"host: {self.host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        lines.append(f"content-length: {body_length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def host_header(self) -> str:
        """`host:port` of the worker."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def worker_at(url: str, key: str | None) -> Worker:
    """A worker by its base URL (`http://host:port[/prefix]`). Raises ValueError for another
    form."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"worker URL must be http://host:port, found {url!r}")
    port = parts.port or 80
    name = f"{parts.hostname}:{port}"
    pool = UpstreamPool(parts.hostname, port)
    return Worker(name, url.rstrip("/"), pool, key=key, path_prefix=parts.path.rstrip("/"))
