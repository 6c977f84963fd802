"""What every benchmark takes and gives: arguments, a flat JSON of figures, intervals."""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
Figure = float | int | str | bool | None
Interval = tuple[float, float]

PACKAGES = ("governor-gateway", "torch", "transformers", "httpx")
# What a figure depends on besides the machine.
MEASURED_FOLDERS = ("governor", "probes", "kernels", "policies", "benchmarks")
Z_95 = 1.959964


def argument_parser(module: str, description: str) -> argparse.ArgumentParser:
    """The arguments that every benchmark has; a benchmark adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(
        "--quick", action="store_true", help="a small run, under 60 s; its figures are no result"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures; - for standard output")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything drawn")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a plot (PNG or SVG)")
    parser.add_argument("--rounds", type=int, default=1, help="repetitions with seed, seed + 1, …")
    return parser


def metadata(seed: int, *, quick: bool) -> dict[str, Figure]:
    """Where the figures come from: date, machine, versions, commit, command."""
    command = ["python", "-m", _module(), *sys.argv[1:]]
    found: dict[str, Figure] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(command),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", *MEASURED_FOLDERS)),
        "machine_cpu": _cpu_model(),
        "machine_cores": os.cpu_count(),
        "version_python": platform.python_version(),
        "seed": seed,
        "quick": quick,
    }
    for package in PACKAGES:
        try:
            found[f"version_{package.replace('-', '_')}"] = version(package)
        except PackageNotFoundError:
            found[f"version_{package.replace('-', '_')}"] = None
    return found


def write_json(target: str, figures: Mapping[str, Figure], meta: Mapping[str, Figure]) -> None:
    """One flat object, sorted, to a file or to standard output (`-`).

    Raises ValueError for a nested or non-finite value and for a name that both bring.
    """
    if both := set(figures) & set(meta):
        raise ValueError(f"figures and metadata both have {sorted(both)}")
    flat = {**figures, **meta}
    for name, value in flat.items():
        if not isinstance(value, float | int | str | None):
            raise ValueError(f"{name} is not flat: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not a number: {value}")
    text = json.dumps(flat, indent=2, sort_keys=True) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def bootstrap(
    count: int,
    statistic: Callable[[NDArray[np.intp]], float],
    seed: int,
    *,
    strata: Sequence[object] | None = None,
    samples: int = 2000,
) -> Interval:
    """95 % percentile interval: `statistic` of `count` indices drawn with replacement.

    With `strata` (a label per index) each label is drawn as often as it stands there: for a mix
    that is fixed by design. The same seed gives the same interval. Raises ValueError without
    anything to draw from.
    """
    if count < 1:
        raise ValueError("nothing to draw from")
    labels = [0] * count if strata is None else list(strata)
    groups = [
        np.asarray([i for i, label in enumerate(labels) if label == wanted], dtype=np.intp)
        for wanted in dict.fromkeys(labels)
    ]
    rng = np.random.default_rng(seed)
    values = [
        statistic(np.concatenate([rng.choice(group, len(group)) for group in groups]))
        for _ in range(samples)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def wilson(hits: int, count: int) -> Interval:
    """95 % score interval of a share: for shares near 0 or 1, where a bootstrap has no width.

    Source: Wilson 1927. Raises ValueError for a count below one.
    """
    if count < 1:
        raise ValueError("a share of nothing")
    share, spread = hits / count, Z_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def quantile(values: Sequence[float], level: float) -> float | None:
    """Quantile by linear interpolation; None of nothing."""
    return float(np.quantile(np.asarray(values), level)) if len(values) else None


def _module() -> str:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
