"""One policy of a file, read from its node into stated values; merged ones into a TenantPolicy."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import yaml

from governor.adapters.policies_fields import (
    BY_PATH,
    KEYS,
    LEAVES,
    SECTION_LEAVES,
    Leaf,
    Scope,
    Section,
)
from governor.adapters.policies_migrate import API_VERSION, renamed_from_alpha
from governor.adapters.policies_nodes import Given, NodeReader, as_found, inside
from governor.adapters.policies_values import shown
from governor.core.keys import KeyEntry, is_key_hash
from governor.core.policy import DEFAULT_EFFORT_TOKENS, TenantPolicy

# Stated values by the leaf's path. Merging policies is merging these.
Stated = dict[str, Given]

_NOT_SHOWN = "something that is not shown"
_HASH_WANTED = "sha256: and 64 hex digits, as `governor keys issue` prints them"
# Keys of a tenant that hold no value of the policy itself.
TENANT_PARTS = ("keys", "models", "priorities")


def read_policy(
    reader: NodeReader,
    node: yaml.Node,
    path: str,
    scope: Scope,
    parts: Mapping[str, Callable[[yaml.Node, str], None]],
) -> Stated:
    """The values that a policy states. `parts` reads the keys that hold no values."""
    known = KEYS[scope]
    stated: Stated = {}
    for name, key, value in reader.pairs(node, path, f"keys such as {', '.join(list(known)[:3])}"):
        where = inside(path, name)
        entry = known.get(name)
        if name in parts:
            parts[name](value, where)
        elif isinstance(entry, Leaf):
            given = reader.leaf(entry, value, where)
            if given is not None:
                stated[entry.path] = given
        elif entry is not None:
            _read_section(reader, entry, value, where, scope, stated)
        else:
            _refuse_key(reader, key, path, scope, (*known, *parts))
    return stated


def _read_section(
    reader: NodeReader,
    section: Section,
    node: yaml.Node,
    path: str,
    scope: Scope,
    stated: Stated,
) -> None:
    if section.short and isinstance(node, yaml.ScalarNode) and node.value:
        for leaf_path in section.short:
            given = reader.leaf(BY_PATH[leaf_path], node, path)
            if given is not None:
                stated[leaf_path] = given
        return
    leaves = SECTION_LEAVES[section.name, scope]
    for name, key, value in reader.pairs(node, path, ", ".join(leaves)):
        leaf = leaves.get(name)
        if leaf is None:
            _refuse_key(reader, key, path, scope, tuple(leaves))
            continue
        given = reader.leaf(leaf, value, inside(path, name))
        if given is not None:
            stated[leaf.path] = given


def _refuse_key(
    reader: NodeReader, key: yaml.ScalarNode, path: str, scope: Scope, known: tuple[str, ...]
) -> None:
    """Record a key that may not stand here, and where it may."""
    renamed = renamed_from_alpha(key.value)
    if renamed is not None:
        message = f"is a key of v1alpha1; in {API_VERSION} it is {renamed}"
        reader.fault(key, inside(path, key.value), message, nearest=renamed)
    elif scope is not Scope.TENANT and key.value in (*KEYS[Scope.TENANT], *TENANT_PARTS):
        message = (
            f"belongs to a tenant, not to a {scope}"
            if scope is not Scope.DEFAULTS
            else ("belongs to one tenant, not to the defaults of all")
        )
        reader.fault(key, inside(path, key.value), message, allowed=", ".join(known))
    else:
        reader.unknown(key, path, known)


def check_together(reader: NodeReader, stated: Stated) -> None:
    """Faults that only two values together make, at the one that stands later in the file."""
    default, maximum = stated.get("budget.default"), stated.get("budget.max")
    if default is None or maximum is None or not isinstance(maximum.value, int):
        return
    if isinstance(default.value, int) and default.value > maximum.value:
        first, last = sorted((default, maximum), key=lambda given: (given.line, given.column))
        other = "maximum" if first is maximum else "default"
        reader.fault_at(
            last,
            f"the default budget is above the maximum (the {other} is in line {first.line})",
            found=str(last.value),
            allowed=f"a default of at most {maximum.value} tokens",
        )


def policy_from(tenant: str, stated: Stated) -> TenantPolicy:
    """The policy with `stated` over the built-in defaults."""
    own: dict[str, object] = {"tenant": tenant}
    inner: dict[str, dict[str, object]] = {}
    efforts: dict[str, object] = {}
    for path, given in stated.items():
        attribute = BY_PATH[path].attribute
        if attribute == "effort_tokens":
            efforts[path.removeprefix("effort.")] = given.value
            continue
        section, _, name = attribute.rpartition(".")
        if section:
            inner.setdefault(section, {})[name] = given.value
        else:
            own[name] = given.value
    if efforts:
        own["effort_tokens"] = tuple(
            (word, efforts.get(word, tokens)) for word, tokens in DEFAULT_EFFORT_TOKENS
        )
    base = TenantPolicy()
    for section, values in inner.items():
        own[section] = replace(getattr(base, section), **values)
    return replace(base, **own)  # type: ignore[arg-type]  # the table's test checks names and types


def values_of(policy: TenantPolicy) -> dict[str, str]:
    """Every value of a policy as a file would state it, by path."""
    values = {}
    for leaf in LEAVES:
        value: object = policy
        if leaf.attribute == "effort_tokens":
            value = policy.tokens_for_effort(leaf.path.removeprefix("effort."))
        else:
            for name in leaf.attribute.split("."):
                value = getattr(value, name)
        values[leaf.path] = shown(leaf, value)
    return values


def read_keys(
    reader: NodeReader, node: yaml.Node, path: str, tenant: str
) -> list[tuple[KeyEntry, Given]]:
    """A tenant's keys. What is no hash may be a secret and never appears in a message."""
    if not isinstance(node, yaml.SequenceNode):
        reader.fault(node, path, "must be a list", found=_NOT_SHOWN, allowed=_HASH_WANTED)
        return []
    entries = []
    for index, item in enumerate(node.value):
        entry = _read_key(reader, item, f"{path}[{index}]", tenant)
        if entry is not None:
            entries.append(entry)
    return entries


def _read_key(
    reader: NodeReader, node: yaml.Node, path: str, tenant: str
) -> tuple[KeyEntry, Given] | None:
    hash_node: yaml.Node | None = node
    not_after_s: int | None = None
    if isinstance(node, yaml.MappingNode):
        hash_node = None
        for name, key, value in reader.pairs(node, path, "hash, not_after, note"):
            where = inside(path, name)
            if name == "hash":
                hash_node = value
            elif name == "not_after":
                not_after_s = _read_moment(reader, value, where)
            elif name != "note":
                reader.unknown(key, path, ("hash", "not_after", "note"))
        if hash_node is None:
            reader.fault(node, path, "has no hash", allowed=_HASH_WANTED)
            return None
    text = hash_node.value if isinstance(hash_node, yaml.ScalarNode) else ""
    if not is_key_hash(text):
        message = "is not the hash of a key; a key itself never stands in this file"
        reader.fault(hash_node or node, path, message, found=_NOT_SHOWN, allowed=_HASH_WANTED)
        return None
    mark = node.start_mark
    given = Given(text, path, mark.line + 1, mark.column + 1)
    return KeyEntry(text, tenant, not_after_s), given


def _read_moment(reader: NodeReader, node: yaml.Node, path: str) -> int | None:
    """Unix time of a date (its last second, UTC) or of a time with its zone."""
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    try:
        if len(text) == len("2026-12-31"):
            end = date.fromisoformat(text) + timedelta(days=1)
            return int(datetime(end.year, end.month, end.day, tzinfo=UTC).timestamp()) - 1
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        form = "2026-12-31 (until its end, UTC) or 2026-12-31T12:00:00+02:00"
        message = "is not a date, nor a time with its zone"
        reader.fault(node, path, message, found=as_found(node), allowed=form)
        return None
    return int(moment.timestamp())
