"""Tensors that depend on no argument: computed at capture where a kernel could not compute them, which is what float64 is for.

A table of frequencies in float64, `torch.tensor(math.sqrt(2.0), dtype=torch.float64)`: their elements are constants of the kernel,
rounded once, as eager rounds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Known:
    """The values of an exported graph's nodes that no argument decides, computed when they are asked for.

    constant: the tensor behind a placeholder that is no argument, None where there is none.
    """

    def __init__(self, constant: Callable[[Any], torch.Tensor | None]) -> None:
        self._constant = constant
        self._found: dict[Any, Any] = {}

    def value(self, node: Any) -> Any:
        """What the node gives, None where an argument, a free size or chance decides it."""
        if node not in self._found:
            self._found[node] = self._compute(node)
        return self._found[node]

    def _compute(self, node: Any) -> Any:
        if node.op == "placeholder":
            found = self._constant(node)
            return None if found is None or type(found).__name__ == "FakeTensor" else found.detach().cpu()
        tags = getattr(node.target, "tags", ())
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
            return None
        inputs = {n: self.value(n) for n in node.all_input_nodes}
        if any(v is None for v in inputs.values()):
            return None
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), inputs.__getitem__)
        here = {"device": torch.device("cpu")} if "device" in kwargs else {}
        with torch.no_grad():
            return node.target(*args, **{**kwargs, **here})


def is_wide(value: Any) -> bool:
    """Whether a node gives float64, which no kernel computes in."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64
