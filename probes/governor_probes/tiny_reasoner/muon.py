"""Muon in float32: momentum with orthogonalised updates for weight matrices (Jordan et al., 2024).

torch's own Muon does its Newton-Schulz steps in bfloat16, which is about ten times slower on a CPU
without bfloat16 arithmetic. Matrices of equal shape go as one batch.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

# Coefficients of the quintic Newton-Schulz iteration, from Muon's reference description.
_A, _B, _C = 3.4445, -4.775, 2.0315
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """For 2-D parameters only. `lr` is scaled by 0.2·√max(rows, columns) per matrix."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; gradients must be present on every parameter."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                by_shape[tuple(param.shape)].append(param)
            for shape, params in by_shape.items():
                self._update(shape, params, group)

    def _update(
        self, shape: tuple[int, ...], params: list[torch.nn.Parameter], group: dict[str, float]
    ) -> None:
        gradients = [param.grad for param in params]
        if any(gradient is None for gradient in gradients):
            raise RuntimeError("Muon.step() needs a gradient on every parameter")
        stacked = torch.stack([gradient for gradient in gradients if gradient is not None])
        state = self.state[params[0]]
        if "average" not in state:
            state["average"] = torch.zeros_like(stacked)
        state["average"].lerp_(stacked, 1 - group["momentum"])
        updates = _orthogonalise(stacked.lerp(state["average"], group["momentum"]))
        rate = group["lr"]
        scale = -rate * 0.2 * float(max(shape)) ** 0.5
        for param, update in zip(params, updates, strict=True):
            param.mul_(1 - rate * group["weight_decay"]).add_(update, alpha=scale)


def _orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Nearest semi-orthogonal matrices of a (batch, rows, columns) tensor, approximately."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x
