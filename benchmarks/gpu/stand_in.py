"""As much of pytest as modules of tests need to be imported and called, where it is missing."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


class Skipped(BaseException):
    """What ``skip`` raises."""


class Marks:
    """``pytest.mark``: decorators that leave a function as it is."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def mark(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            return lambda function: function

        return mark


def skip(reason: str = "") -> None:
    raise Skipped(reason)


def param(*values: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(values=values)


def importorskip(name: str) -> ModuleType:
    return importlib.import_module(name)


def fixture(*args: Any, **kwargs: Any) -> Any:
    return args[0] if args else lambda function: function


@contextmanager
def raises(expected: type[BaseException], match: str = "") -> Iterator[None]:
    try:
        yield
    except expected as error:
        if not re.search(match, str(error)):
            raise AssertionError(f"{match!r} does not match {str(error)!r}") from error
        return
    raise AssertionError(f"{expected.__name__} was not raised")


def stand_in() -> ModuleType:
    """A module that offers the above under pytest's names."""
    module = ModuleType("pytest")
    setattr(skip, "Exception", Skipped)  # noqa: B010
    offered = SimpleNamespace(
        mark=Marks(),
        param=param,
        skip=skip,
        importorskip=importorskip,
        fixture=fixture,
        raises=raises,
    )
    vars(module).update(vars(offered))
    return module


def import_pytest() -> Any:
    """pytest, or what stands in for it where it is not installed."""
    try:
        return importlib.import_module("pytest")
    except ModuleNotFoundError:
        module = sys.modules["pytest"] = stand_in()
        return module
