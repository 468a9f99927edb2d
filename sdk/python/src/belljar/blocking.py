"""Methods for threads out of methods for event loops: the same code, driven to its end in one go.

A class for threads holds the one for event loops as its `_core` and names which of its methods it offers. Parameters,
types and documentation are those of the method that is named.
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
    """A method that runs another of the core."""

    def __init__(self, method: Callable[..., Any], through: Callable[[Any], R]) -> None:
        self._method, self._through = method, through
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, R]:
        method, through = self._method, self._through

        @functools.wraps(method)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return through(method(instance._core, *args, **kwargs))

        if instance is not None:
            # Its signature has no `self` any more; who looks for one follows this.
            bound.__wrapped__ = method.__get__(instance._core)
        return bound


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, T]:
    """A coroutine method as one that blocks."""
    return Method(method, run)


def blocking_into(into: Callable[[T], R], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, R]:
    """Likewise, where its result is a core that is to be wrapped."""
    return Method(method, lambda coroutine: into(run(coroutine)))


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Method[P, Iterator[T]]:
    """An asynchronous iterator as one that blocks."""
    return Method(method, iterate)
