"""Stands in for SGLang's kernels, whose build for the CPU is on no registry.

Every name of the real package can be imported; what its Llama path really calls on a CPU is written here in plain
torch, anything else raises when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    request_rows: torch.Tensor,
    table: torch.Tensor,
    begins: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    row_length: int,
) -> None:
    """Writes each request's new cache slots into its row of the table, from `begins` to `ends`."""
    taken = 0
    for row, begin, end in zip(request_rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
        table[row, begin:end] = slots[taken : taken + end - begin].to(table.dtype)
        taken += end - begin


def copy_all_layer_kv_cache_cpu(
    keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], targets: torch.Tensor, sources: torch.Tensor, *_: Any
) -> None:
    """Moves cache slots within every layer."""
    for layer in (*keys, *values):
        layer[targets] = layer[sources]


class _Missing:
    """A kernel that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        return _missing(f"{self._name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self._name}: no kernel for the CPU here")


def _missing(path: str) -> _Missing:
    if path.rpartition(".")[2].startswith("__"):
        raise AttributeError(path)
    return _Missing(path)


class _Part(ModuleType):
    """A submodule of which nothing is known but that it is imported from."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        return _missing(f"{self.__name__}.{name}")


class _Parts(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Part(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Parts())


def __getattr__(name: str) -> Any:
    return _missing(f"{__name__}.{name}")
