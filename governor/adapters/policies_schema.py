"""JSON Schema and reference table of policy files, made from the table of keys. Validates nothing:
the loader does, with lines and all faults at once."""

import json
from typing import Any

from governor.adapters.policies_fields import (
    BY_SECTION,
    KEYS,
    SECTION_LEAVES,
    Kind,
    Leaf,
    Scope,
    Section,
)
from governor.adapters.policies_migrate import API_VERSION, KNOWN_VERSIONS
from governor.adapters.policies_values import allowed, shown
from governor.core.outcomes import Priority

_SUFFIXES = {
    Kind.TOKENS: "[kKM]?",
    Kind.AREA: "[kMGT]?",
    Kind.SECONDS: "(ms|s|m|h|d)?",
    Kind.SHARE: "%?",
    Kind.PERCENT: "%?",
    Kind.COUNT: "",
    Kind.NUMBER: "",
}
_WHOLE = (Kind.TOKENS, Kind.COUNT, Kind.AREA)
_KEYS_ABOUT = (
    "Keys of the tenant's callers: the SHA-256 of each, as `governor keys issue` prints it, or "
    "`{hash, not_after, note}`. Two entries at a time rotate a key with overlap."
)
_MODELS_ABOUT = (
    "Overrides for some models: pattern to partial policy. Of the patterns that match, the most "
    "specific one applies, alone."
)
_BANDS_ABOUT = "Overrides for requests of a priority band; they apply on top of `models`."
_ANONYMOUS_ABOUT = (
    "The tenant of callers without a key; null: every caller needs one. Where it is absent: tenant "
    "`default`, as long as no tenant has a key."
)


def json_schema() -> dict[str, Any]:
    """The schema, JSON Schema 2020-12. It is for editors and CI, and a little wider than the
    loader: ranges of numbers with a unit, and rules between keys, are the loader's alone."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Governor policy",
        "type": "object",
        "additionalProperties": False,
        "required": ["tenants"],
        "properties": {
            "apiVersion": {"enum": list(KNOWN_VERSIONS[:1]), "default": API_VERSION},
            "anonymous_tenant": {"type": ["string", "null"], "description": _ANONYMOUS_ABOUT},
            "defaults": {**_policy(Scope.DEFAULTS), "description": "Under every tenant."},
            "tenants": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
                "additionalProperties": {"$ref": "#/$defs/tenant"},
            },
        },
        "$defs": {
            "tenant": _policy(Scope.TENANT),
            "model": _policy(Scope.MODEL),
            "band": _policy(Scope.BAND),
            "key": _key(),
        },
    }


def schema_text() -> str:
    """The schema as it is committed."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _key() -> dict[str, Any]:
    digest = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
    members = {"hash": digest, "not_after": {}, "note": {"type": "string"}}
    whole = {
        "type": "object",
        "additionalProperties": False,
        "required": ["hash"],
        "properties": members,
    }
    return {"anyOf": [digest, whole]}


def _policy(scope: Scope) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if scope is Scope.TENANT:
        keys = {"type": "array", "items": {"$ref": "#/$defs/key"}, "description": _KEYS_ABOUT}
        properties["keys"] = keys
    for name, entry in KEYS[scope].items():
        properties[name] = _leaf(entry) if isinstance(entry, Leaf) else _section(entry, scope)
    if scope is Scope.TENANT:
        properties["models"] = {
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/$defs/model"},
            "description": _MODELS_ABOUT,
        }
        properties["priorities"] = {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {band.name.lower(): {"$ref": "#/$defs/band"} for band in Priority},
            "description": _BANDS_ABOUT,
        }
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _section(section: Section, scope: Scope) -> dict[str, Any]:
    leaves = SECTION_LEAVES[section.name, scope]
    whole: dict[str, Any] = {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {name: _leaf(leaf) for name, leaf in leaves.items()},
    }
    if not section.short:
        return {**whole, "description": section.about}
    short = _form(leaves[section.short[0].rpartition(".")[2]])
    return {"anyOf": [short, whole], "description": section.about}


def _leaf(leaf: Leaf) -> dict[str, Any]:
    described = f"{leaf.about} Allowed: {allowed(leaf)}."
    return {**_form(leaf), "description": described, "default": _as_json(leaf.default)}


def _form(leaf: Leaf) -> dict[str, Any]:
    forms = [_plain_form(leaf)]
    if leaf.kind in _SUFFIXES:
        number = r"^(0|[1-9][0-9_]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})? ?"
        forms.append({"type": "string", "pattern": f"{number}{_SUFFIXES[leaf.kind]}$"})
    if leaf.null_means is not None:
        forms.append({"type": "null"})
    if leaf.null_word is not None:
        forms.append({"const": leaf.null_word})
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _plain_form(leaf: Leaf) -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    match leaf.kind:
        case Kind.CHOICE:
            return {"enum": list(leaf.choices)}
        case Kind.SWITCH:
            return {"type": "boolean"}
        case Kind.TEXT:
            return {
                "type": "string",
                "minLength": int(leaf.minimum),
                "maxLength": int(leaf.maximum),
            }
        case Kind.PATTERNS:
            return {"type": "array", "minItems": 1, "items": text}
        case Kind.NAMES:
            return {"type": "array", "items": text}
        case _:
            kind = "integer" if leaf.kind in _WHOLE else "number"
            return {"type": kind, "minimum": leaf.minimum, "maximum": leaf.maximum}


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Priority):
        return value.name.lower()
    return value


def reference() -> str:
    """The keys of a policy as Markdown tables."""
    lines = [
        "### The file",
        "",
        "| key | what it does |",
        "|---|---|",
        f"| `apiVersion` | `{API_VERSION}`. Absent: read as that, with a warning. |",
        f"| `anonymous_tenant` | {_ANONYMOUS_ABOUT} |",
        "| `defaults` | A policy that lies under that of every tenant. |",
        "| `tenants` | Name to policy. Letters, digits, `.`, `_`, `-`; at most 64. |",
        "",
        "### A tenant",
        "",
        "| key | what it does |",
        "|---|---|",
        f"| `keys` | {_KEYS_ABOUT} |",
        f"| `models` | {_MODELS_ABOUT} |",
        f"| `priorities` | {_BANDS_ABOUT} |",
        "",
        "### Values",
        "",
        "The last column says where a key may stand besides a tenant: under `defaults` (d), in an "
        "override of `models` (m) or of `priorities` (p).",
        "",
        "| key | type | default | allowed | what it does | also in |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in KEYS[Scope.TENANT].items():
        if isinstance(entry, Leaf):
            lines.append(_row(entry))
            continue
        lines.append(f"| **`{name}`** | section | | | {BY_SECTION[name].about} | |")
        lines += [_row(leaf) for leaf in SECTION_LEAVES[name, Scope.TENANT].values()]
    return "\n".join(lines)


def _row(leaf: Leaf) -> str:
    marks = {Scope.DEFAULTS: "d", Scope.MODEL: "m", Scope.BAND: "p"}
    scopes = " ".join(mark for scope, mark in marks.items() if scope in leaf.scopes)
    cells = (
        f"`{leaf.path}`",
        str(leaf.kind),
        f"`{shown(leaf, leaf.default)}`",
        allowed(leaf),
        leaf.about,
        scopes,
    )
    return "| " + " | ".join(cells) + " |"
