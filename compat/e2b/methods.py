"""Which public methods of the SDK a scenario called, and how that ended.

The packages stay as they were installed. In this process alone their classes are given a descriptor in place of each public
method, which hands on the call and notes it. What the SDK calls by itself inside of such a call is not noted: `files.write` does
not make `files.write_files` tried.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

#: What a class is called in the table, its module, and its name there; `{}` is `sync` or `async`, `<>` is `Async` or nothing.
CLASSES = [
    ("Sandbox", "e2b.sandbox_{}.main", "<>Sandbox"),
    ("Sandbox", "e2b_code_interpreter", "<>Sandbox"),
    ("SandboxPaginator", "e2b.sandbox_{}.paginator", "<>SandboxPaginator"),
    ("commands", "e2b.sandbox_{}.commands.command", "Commands"),
    ("CommandHandle", "e2b.sandbox_{}.commands.command_handle", "<>CommandHandle"),
    ("CommandInputHandle", "e2b.sandbox_{}.commands.command_input_handle", "<>CommandInputHandle"),
    ("pty", "e2b.sandbox_{}.commands.pty", "Pty"),
    ("files", "e2b.sandbox_{}.filesystem.filesystem", "Filesystem"),
    ("WatchHandle", "e2b.sandbox_{}.filesystem.watch_handle", "<>WatchHandle"),
    ("git", "e2b.sandbox_{}.git", "Git"),
    ("Template", "e2b.template_{}.main", "<>Template"),
    ("TemplateBuilder", "e2b.template.main", "TemplateBuilder"),
    ("Volume", "e2b", "<>Volume"),
    ("Secret", "e2b", "<>Secret"),
]

#: They make a description on the client's side, and nothing of them reaches a server.
LOCAL = ("Template.skip_cache", "Template.to_*", "Secret.fill", "Secret.iam_token")

#: A call that is made by the SDK itself, on the way of another.
_inside = contextvars.ContextVar("inside", default=False)


class Record:
    """The calls of all scenarios."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._worked: set[str] = set()
        #: What scenarios said of methods, by pattern: the result and why.
        self._said: dict[str, tuple[str, str]] = {}
        self._pending: tuple[set[str], dict[str, tuple[str, str]]] = (set(), {})

    def watch(self, asynchronous: bool) -> None:
        """Notes calls of the classes of one kind from now on."""
        kind, prefix = ("async", "Async") if asynchronous else ("sync", "")
        for label, module, name in CLASSES:
            try:
                owner = getattr(importlib.import_module(module.format(kind)), name.replace("<>", prefix))
            except (ImportError, AttributeError):
                # Not every release has it.
                continue
            self._watch_class(label, owner)

    def differs(self, pattern: str, why: str) -> None:
        """A method does something else than in the vendor's service, and a scenario has shown what."""
        self._pending[1][pattern] = ("differs", why)

    def not_offered(self, pattern: str, why: str) -> None:
        """The server refuses it, and a scenario has seen how."""
        self._pending[1][pattern] = ("not offered", why)

    def settle(self, passed: bool) -> None:
        """A scenario has ended. What a failed one called proves nothing."""
        if passed:
            self._worked |= self._pending[0]
            self._said |= self._pending[1]
        self._pending = (set(), {})

    def lines(self) -> list[dict[str, str]]:
        """Each method with its result."""
        return [{"method": name, **self._result(name)} for name in sorted(self._known)]

    def _result(self, method: str) -> dict[str, str]:
        for pattern, (result, why) in self._said.items():
            if fnmatchcase(method, pattern):
                return {"result": result, "note": why}
        return {"result": "works" if method in self._worked else "not tried", "note": ""}

    def _watch_class(self, label: str, cls: type) -> None:
        for name in dir(cls):
            owner = next(one for one in cls.__mro__ if name in one.__dict__) if not name.startswith("_") else object
            method = owner.__dict__.get(name)
            if owner is object or isinstance(method, (property, Watched, type)) or not callable(getattr(cls, name)):
                if isinstance(method, Watched):
                    self._known.add(method.label)
                continue
            known = f"{label}.{name}"
            if any(fnmatchcase(known, pattern) for pattern in LOCAL):
                continue
            self._known.add(known)
            setattr(owner, name, Watched(method, known, self._note))

    def _note(self, label: str) -> None:
        self._pending[0].add(label)


class Watched:
    """Stands where a method stood: plain, of the class, static, or the SDK's own kind that is two of these."""

    def __init__(self, method: Any, label: str, note: Callable[[str], None]) -> None:
        self.label = label
        self._method, self._note = method, note

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        bound = self._method.__get__(instance, owner)

        @functools.wraps(bound)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _inside.get():
                return bound(*args, **kwargs)
            token = _inside.set(True)
            try:
                result = bound(*args, **kwargs)
            finally:
                _inside.reset(token)
            if inspect.iscoroutine(result):
                return self._awaited(result)
            self._note(self.label)
            return result

        return call

    async def _awaited(self, result: Any) -> Any:
        token = _inside.set(True)
        try:
            value = await result
        finally:
            _inside.reset(token)
        self._note(self.label)
        return value
