"""Walks YAML nodes and collects faults with their places: mappings, lists, values. Knows no key."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from governor.adapters.policies_fields import Kind, Leaf
from governor.adapters.policies_values import NULL, ValueRefused, allowed, read_value
from governor.adapters.policy_problem import Problem
from governor.core.keys import KEY_PREFIX

_MERGE = "tag:yaml.org,2002:merge"
_LONGEST_NAME = 200
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Given:
    """One value that the file states, and where."""

    value: object
    path: str
    line: int
    column: int


def tag_of(node: yaml.Node) -> str:
    """The last part of a node's tag: `int`, `str`, `map`, …"""
    return str(node.tag).rpartition(":")[2]


def is_null(node: yaml.Node) -> bool:
    """Whether nothing stands there: `key:` or an explicit null."""
    return isinstance(node, yaml.ScalarNode) and tag_of(node) == NULL


def as_found(node: yaml.Node) -> str:
    """What stands there, short enough for a message."""
    if isinstance(node, yaml.ScalarNode):
        text = KEY_PREFIX + "…" if node.value.startswith(KEY_PREFIX) else node.value
        cut = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
        return repr(cut) if text else "nothing"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


class NodeReader:
    """Reads nodes of one file. Faults gather in `problems`, each once; nothing is raised."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: dict[Problem, None] = {}

    def fault(
        self,
        node: yaml.Node,
        path: str,
        message: str,
        *,
        found: str | None = None,
        allowed: str | None = None,
        nearest: str | None = None,
    ) -> None:
        """Record a fault at `node`."""
        mark = node.start_mark
        place = (mark.line + 1, mark.column + 1)
        self.problems[Problem(message, path, *place, found, allowed, nearest)] = None

    def fault_at(
        self, given: Given, message: str, *, found: str | None = None, allowed: str | None = None
    ) -> None:
        """Record a fault at a value that has been read."""
        problem = Problem(message, given.path, given.line, given.column, found, allowed)
        self.problems[problem] = None

    def pairs(
        self, node: yaml.Node, path: str, holds: str
    ) -> list[tuple[str, yaml.ScalarNode, yaml.Node]]:
        """Keys with their nodes and values. An empty node is an empty mapping; duplicate keys, keys
        that are no plain text, and YAML merge keys are faults."""
        if is_null(node):
            return []
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, path, "must be a mapping", found=as_found(node), allowed=holds)
            return []
        seen: dict[str, int] = {}
        pairs = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fault(key, path, "a key must be plain text", found=as_found(key))
            elif key.tag == _MERGE:
                message = "merge keys are not read; what tenants share belongs under defaults"
                self.fault(key, path, message, found=as_found(key))
            elif key.value in seen:
                place = f"is given twice (first in line {seen[key.value]})"
                self.fault(key, inside(path, key.value), place)
            else:
                seen[key.value] = key.start_mark.line + 1
                pairs.append((key.value, key, value))
        return pairs

    def unknown(self, key: yaml.ScalarNode, path: str, known: Iterable[str]) -> None:
        """Record an unknown key with the nearest known one."""
        names = tuple(known)
        near = difflib.get_close_matches(key.value[:_LONGEST_NAME], names, 1, 0.5)
        self.fault(
            key,
            inside(path, key.value),
            "is not a known key",
            allowed=", ".join(names),
            nearest=near[0] if near else None,
        )

    def leaf(self, leaf: Leaf, node: yaml.Node, path: str) -> Given | None:
        """The value of `leaf`, or None after recording a fault."""
        mark = node.start_mark
        if leaf.kind in (Kind.PATTERNS, Kind.NAMES):
            value: object = self.texts(leaf, node, path)
            if value is None:
                return None
        elif not isinstance(node, yaml.ScalarNode):
            message = "must be a single value"
            self.fault(node, path, message, found=as_found(node), allowed=allowed(leaf))
            return None
        else:
            try:
                value = read_value(leaf, node.value, tag_of(node))
            except ValueRefused as refused:
                near = difflib.get_close_matches(node.value[:_LONGEST_NAME], leaf.choices, 1, 0.5)
                self.fault(
                    node,
                    path,
                    str(refused),
                    found=as_found(node),
                    allowed=allowed(leaf),
                    nearest=near[0] if near else None,
                )
                return None
        return Given(value, path, mark.line + 1, mark.column + 1)

    def texts(self, leaf: Leaf, node: yaml.Node, path: str) -> tuple[str, ...] | None:
        """A list of short texts, or None after recording a fault."""
        if not isinstance(node, yaml.SequenceNode):
            self.fault(node, path, "must be a list", found=as_found(node), allowed=allowed(leaf))
            return None
        if not node.value and leaf.kind is Kind.PATTERNS:
            self.fault(node, path, "must not be empty", found="[]", allowed=allowed(leaf))
            return None
        texts = []
        for index, item in enumerate(node.value):
            if not isinstance(item, yaml.ScalarNode) or not 0 < len(item.value) <= _LONGEST_NAME:
                where = f"{path}[{index}]"
                message = f"must be text of 1 to {_LONGEST_NAME} characters"
                self.fault(item, where, message, found=as_found(item))
                return None
            texts.append(item.value)
        return tuple(texts)


def inside(path: str, name: str) -> str:
    """The path of `name` within `path`. A caller's key in the wrong place stays hidden."""
    if name.startswith(KEY_PREFIX):
        name = KEY_PREFIX + "…"
    shown = name if len(name) <= _LONGEST_SHOWN else name[: _LONGEST_SHOWN - 1] + "…"
    return f"{path}.{shown}" if path else shown
