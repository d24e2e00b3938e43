"""Stands in for torchvision, which SGLang imports though text needs no picture: names only, of no use when called."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.0.0"

_INTERPOLATIONS = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS", "RGB")


class _Useless:
    """Base of every class that is asked for; it may be inherited from and made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torchvision's {type(self).__name__} is not here")


class _Part(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Useless,), {member: member for member in _INTERPOLATIONS})


class _Parts(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Part(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Parts())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
