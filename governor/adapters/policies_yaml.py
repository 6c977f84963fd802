"""Loads a policy file: YAML text to PolicySet, or every fault at once with its place.

Fails closed: a file with one fault gives no policy at all. Reads no file while requests run;
`governor.adapters.policies_watch` does.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import yaml

from governor.adapters.policies_fields import Scope
from governor.adapters.policies_migrate import migrated
from governor.adapters.policies_nodes import Given, NodeReader, as_found, inside, is_null
from governor.adapters.policies_tenant import (
    Stated,
    check_together,
    policy_from,
    read_keys,
    read_policy,
)
from governor.adapters.policy_problem import PolicyFileInvalid, Problem
from governor.core.keys import KeyEntry
from governor.core.outcomes import Priority
from governor.core.plain import canonical_json
from governor.core.policy import PolicySet, TenantPolicy, Variant

# A thousand tenants with keys and quotas are 200 kB.
MOST_BYTES = 16 * 1024 * 1024
_TOP_KEYS = ("apiVersion", "anonymous_tenant", "defaults", "tenants")
_LEAST = "tenants: {default: {budget: 4096}}"
# Tenant names are metric labels, header values and parts of Redis keys. A leading underscore is for
# Governor itself.
_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ANONYMOUS_DEFAULT = "default"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy, and what its author should know although it is in force.

    `stated` tells where each value comes from, per tenant, model pattern and band; a value that is
    not in it is built in.
    """

    policy: PolicySet
    warnings: tuple[Problem, ...]
    stated: Mapping[tuple[str, str | None, Priority | None], Stated]


@dataclass(slots=True)
class _Tenant:
    """What the file says of one tenant."""

    name: str
    given: Given
    stated: Stated
    models: dict[str, Stated]
    bands: dict[Priority, Stated]
    keys: list[tuple[KeyEntry, Given]]


def load_policy(text: str | bytes, source: str = "policy") -> LoadedPolicy:
    """The policy that `text` states. Raises PolicyFileInvalid with every fault.

    `source` names the file in messages.
    """
    reader = NodeReader()
    root = _root(text, source)
    root, faults, warnings = migrated(root)
    if faults:
        raise PolicyFileInvalid(source, faults)
    file = _File(reader)
    policy = file.read(root)
    if policy is None:
        ordered = sorted(reader.problems, key=lambda fault: (fault.line, fault.column))
        raise PolicyFileInvalid(source, tuple(ordered))
    return LoadedPolicy(policy, (*warnings, *file.warnings), file.stated)


def policy_hash(policy: PolicySet) -> str:
    """Identifies what a policy says, whatever its file looks like: SHA-256 of the canonical form,
    with the tenants in the order of their names."""
    ordered = replace(
        policy,
        policy_hash="",
        tenants=tuple(sorted(policy.tenants, key=lambda pair: pair[0])),
        keys=tuple(sorted(policy.keys, key=lambda entry: entry.key_hash)),
        variants=tuple(sorted(policy.variants, key=lambda pair: pair[0])),
    )
    return "sha256:" + hashlib.sha256(canonical_json(ordered).encode()).hexdigest()


def _root(text: str | bytes, source: str) -> yaml.MappingNode:
    """The node of the whole file. Raises PolicyFileInvalid: what is no YAML has one fault."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MOST_BYTES:
        message = f"the file has {len(data)} bytes"
        raise PolicyFileInvalid(source, (Problem(message, allowed=f"{MOST_BYTES} bytes"),))
    try:
        root = yaml.compose(data, Loader=_LOADER)
    except (yaml.MarkedYAMLError, RecursionError, yaml.YAMLError, UnicodeError) as error:
        raise PolicyFileInvalid(source, (_not_yaml(error),)) from error
    if isinstance(root, yaml.MappingNode):
        return root
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        raise PolicyFileInvalid(source, (Problem("the file is empty", allowed=_LEAST),))
    mark = root.start_mark
    fault = Problem(
        "the file must be a mapping", "", mark.line + 1, mark.column + 1, as_found(root), _LEAST
    )
    raise PolicyFileInvalid(source, (fault,))


def _not_yaml(error: Exception) -> Problem:
    if isinstance(error, RecursionError):
        return Problem("is not a policy: nested too deeply")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = [getattr(error, "context", None), getattr(error, "problem", None)]
    text = ", ".join(word for word in words if word) or str(error).splitlines()[0]
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    return Problem(f"is not YAML: {text}", "", line, column)


class _File:
    """One reading of one file."""

    __slots__ = ("_reader", "stated", "warnings")

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self.stated: dict[tuple[str, str | None, Priority | None], Stated] = {}
        self.warnings: list[Problem] = []

    def read(self, root: yaml.MappingNode) -> PolicySet | None:
        """The policy, or None where the reader has problems."""
        reader = self._reader
        nodes: dict[str, yaml.Node] = {}
        for name, key, value in reader.pairs(root, "", ", ".join(_TOP_KEYS)):
            if name in _TOP_KEYS:
                nodes[name] = value
            else:
                reader.unknown(key, "", _TOP_KEYS)
        defaults: Stated = {}
        if "defaults" in nodes:
            defaults = read_policy(reader, nodes["defaults"], "defaults", Scope.DEFAULTS, {})
            check_together(reader, defaults)
        if "tenants" not in nodes:
            reader.fault(root, "tenants", "is missing", allowed=_LEAST)
            return None
        tenants = self._tenants(nodes["tenants"])
        anonymous = self._anonymous(nodes.get("anonymous_tenant"), tenants)
        policies, variants = self._merged(defaults, tenants)
        keys = self._keys(tenants)
        if reader.problems:
            return None
        self._warn_of_unreachable(tenants, anonymous)
        made = PolicySet("", policies, keys, anonymous, variants)
        return replace(made, policy_hash=policy_hash(made))

    def _tenants(self, node: yaml.Node) -> list[_Tenant]:
        reader = self._reader
        tenants = []
        pairs = reader.pairs(node, "tenants", "tenant names")
        if not pairs and (is_null(node) or not node.value):
            reader.fault(node, "tenants", "names no tenant", allowed=_LEAST)
        for name, key, value in pairs:
            if not _TENANT_NAME.fullmatch(name):
                reader.fault(
                    key,
                    inside("tenants", name),
                    "is not a name for a tenant",
                    found=as_found(key),
                    allowed="1 to 64 letters, digits, '.', '_' and '-', a letter or digit first",
                )
            tenants.append(self._tenant(name, key, value))
        return tenants

    def _tenant(self, name: str, key: yaml.ScalarNode, node: yaml.Node) -> _Tenant:
        path, mark = inside("tenants", name), key.start_mark
        given = Given(name, path, mark.line + 1, mark.column + 1)
        tenant = _Tenant(name, given, {}, {}, {}, [])
        parts = {
            "keys": lambda value, where: tenant.keys.extend(
                read_keys(self._reader, value, where, name)
            ),
            "models": lambda value, where: tenant.models.update(self._models(value, where)),
            "priorities": lambda value, where: tenant.bands.update(self._bands(value, where)),
        }
        tenant.stated = read_policy(self._reader, node, path, Scope.TENANT, parts)
        return tenant

    def _models(self, node: yaml.Node, path: str) -> dict[str, Stated]:
        if isinstance(node, yaml.SequenceNode):
            message = "holds overrides by pattern; a list of allowed models is allow_models"
            self._reader.fault(node, path, message, found=as_found(node), nearest="allow_models")
            return {}
        models = {}
        for pattern, _, value in self._reader.pairs(node, path, "model names or patterns"):
            where = inside(path, pattern)
            models[pattern] = read_policy(self._reader, value, where, Scope.MODEL, {})
        return models

    def _bands(self, node: yaml.Node, path: str) -> dict[Priority, Stated]:
        words = tuple(band.name.lower() for band in Priority)
        bands = {}
        for word, key, value in self._reader.pairs(node, path, ", ".join(words)):
            if word not in words:
                self._reader.unknown(key, path, words)
                continue
            where = inside(path, word)
            stated = read_policy(self._reader, value, where, Scope.BAND, {})
            bands[Priority[word.upper()]] = stated
        return bands

    def _merged(
        self, defaults: Stated, tenants: Iterable[_Tenant]
    ) -> tuple[tuple[tuple[str, TenantPolicy], ...], tuple[tuple[str, Variant], ...]]:
        """Each tenant's policy and its overrides: built-in, defaults, tenant, model, priority."""
        policies, variants = [], []
        for tenant in tenants:
            own = defaults | tenant.stated
            patterns: list[tuple[str | None, Stated]] = [(None, {}), *tenant.models.items()]
            bands: list[tuple[Priority | None, Stated]] = [(None, {}), *tenant.bands.items()]
            for pattern, of_model in patterns:
                for band, of_band in bands:
                    stated = own | of_model | of_band
                    check_together(self._reader, stated)
                    self.stated[tenant.name, pattern, band] = stated
                    policy = policy_from(tenant.name, stated)
                    if pattern is None and band is None:
                        policies.append((tenant.name, policy))
                    else:
                        variants.append((tenant.name, Variant(pattern, band, policy)))
        return tuple(policies), tuple(variants)

    def _keys(self, tenants: Iterable[_Tenant]) -> tuple[KeyEntry, ...]:
        seen: dict[str, Given] = {}
        entries = []
        for tenant in tenants:
            for entry, given in tenant.keys:
                first = seen.setdefault(entry.key_hash, given)
                if first is given:
                    entries.append(entry)
                else:
                    message = f"is the same key as {first.path} in line {first.line}"
                    self._reader.fault_at(given, message)
        return tuple(entries)

    def _anonymous(self, node: yaml.Node | None, tenants: list[_Tenant]) -> str | None:
        """Who serves callers without a key. Where the file says nothing: tenant `default`, as long
        as no tenant has a key."""
        names = [tenant.name for tenant in tenants]
        if node is None:
            has_keys = any(tenant.keys for tenant in tenants)
            return _ANONYMOUS_DEFAULT if not has_keys and _ANONYMOUS_DEFAULT in names else None
        if is_null(node):
            return None
        if not isinstance(node, yaml.ScalarNode) or node.value not in names:
            self._reader.fault(
                node,
                "anonymous_tenant",
                "is not a tenant of this file",
                found=as_found(node),
                allowed=", ".join((*names[:20], "null: every caller needs a key")),
            )
            return None
        return str(node.value)

    def _warn_of_unreachable(self, tenants: Iterable[_Tenant], anonymous: str | None) -> None:
        for tenant in tenants:
            if not tenant.keys and tenant.name != anonymous:
                given = tenant.given
                message = "has no key and is not the anonymous tenant: nobody can reach it"
                self.warnings.append(Problem(message, given.path, given.line, given.column))
