"""Wrappers that turn coroutine methods into blocking methods, so that both variants run the same code.

A blocking class holds its asynchronous counterpart as `_core` and lists the methods it exposes. Parameters, types and
documentation are taken from the methods of `_core`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .transport import iterate, run

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Method(Generic[P, R]):
    """A blocking method that calls a method of the asynchronous counterpart, `_core`."""

    def __init__(self, method: Callable[..., Any], through: Callable[[Any], R]) -> None:
        self._method, self._through = method, through
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, R]:
        method, through = self._method, self._through

        @functools.wraps(method)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return through(method(instance._core, *args, **kwargs))

        if instance is not None:
            # The bound method has no `self` parameter; `inspect.signature` follows `__wrapped__`.
            bound.__wrapped__ = method.__get__(instance._core)
        return bound


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, T]:
    """Wrap a coroutine method as a blocking method."""
    return Method(method, run)


def blocking_into(into: Callable[[T], R], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, R]:
    """Wrap a coroutine method as a blocking method. `into` is the blocking class that wraps the result."""
    return Method(method, lambda coroutine: into(run(coroutine)))


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Method[P, Iterator[T]]:
    """Wrap an asynchronous iterator as a blocking iterator."""
    return Method(method, iterate)
