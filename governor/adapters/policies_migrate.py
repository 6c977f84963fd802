"""The `apiVersion` of a policy file: which ones are read, and how an old one becomes the present
one. Works on YAML nodes, so that every value keeps its line."""

import difflib

import yaml

from governor.adapters.policy_problem import Problem

API_VERSION = "governor.dev/v1"
_ALPHA = "governor.dev/v1alpha1"
# v1alpha1 had flat budgets; key there → section and key here.
ALPHA_RENAMED = {
    "thinking_budget": ("budget", "default"),
    "max_thinking_budget": ("budget", "max"),
    "grace_tokens": ("landing", "grace"),
}
KNOWN_VERSIONS = (API_VERSION, _ALPHA)


def migrated(
    root: yaml.MappingNode,
) -> tuple[yaml.MappingNode, tuple[Problem, ...], tuple[Problem, ...]]:
    """`root` in the present version, with faults and warnings. An absent version is taken as the
    present one."""
    found = next((value for key, value in root.value if key.value == "apiVersion"), None)
    if found is None:
        message = f"there is no apiVersion; read as {API_VERSION}"
        return root, (), (Problem(message, "apiVersion", 1, 1),)
    version = found.value if isinstance(found, yaml.ScalarNode) else None
    if version == API_VERSION:
        return root, (), ()
    if version == _ALPHA:
        warnings: list[Problem] = []
        return _from_alpha(root, warnings), (), tuple(warnings)
    return root, (_unknown_version(found, version),), ()


def renamed_from_alpha(key: str) -> str | None:
    """What a key of v1alpha1 is called here, None for a key that it did not have."""
    renamed = ALPHA_RENAMED.get(key)
    return None if renamed is None else ".".join(renamed)


def _unknown_version(node: yaml.Node, version: str | None) -> Problem:
    near = difflib.get_close_matches(version or "", KNOWN_VERSIONS, 1, 0.9)
    return Problem(
        "is a version that this Governor does not read; a newer one needs a newer Governor, an "
        f"older one is migrated from {_ALPHA} on",
        "apiVersion",
        node.start_mark.line + 1,
        node.start_mark.column + 1,
        repr(version)[:60] if version is not None else "no text",
        ", ".join(KNOWN_VERSIONS),
        near[0] if near else None,
    )


def _from_alpha(root: yaml.MappingNode, warnings: list[Problem]) -> yaml.MappingNode:
    pairs = []
    for key, value in root.value:
        if key.value == "defaults" and isinstance(value, yaml.MappingNode):
            value = _policy_from_alpha(value, "defaults", warnings)
        elif key.value == "tenants" and isinstance(value, yaml.MappingNode):
            tenants = [
                (name, _policy_from_alpha(tenant, f"tenants.{name.value}", warnings))
                if isinstance(tenant, yaml.MappingNode)
                else (name, tenant)
                for name, tenant in value.value
            ]
            value = _mapping(tenants, value)
        pairs.append((key, value))
    mark = root.start_mark
    message = f"{_ALPHA} is read as {API_VERSION}; change apiVersion once the keys are changed"
    warnings.insert(0, Problem(message, "apiVersion", mark.line + 1, mark.column + 1))
    return _mapping(pairs, root)


def _policy_from_alpha(
    policy: yaml.MappingNode, path: str, warnings: list[Problem]
) -> yaml.MappingNode:
    kept, moved = [], []
    for key, value in policy.value:
        renamed = ALPHA_RENAMED.get(key.value) if isinstance(key, yaml.ScalarNode) else None
        if renamed is None:
            kept.append((key, value))
            continue
        section, name = renamed
        mark = key.start_mark
        message = f"is {section}.{name} in {API_VERSION}"
        warnings.append(Problem(message, f"{path}.{key.value}", mark.line + 1, mark.column + 1))
        moved.append((section, _scalar(name, key), value))
    for section, name_node, value in moved:
        kept = _inserted(kept, section, name_node, value)
    return _mapping(kept, policy)


def _inserted(
    pairs: list[tuple[yaml.Node, yaml.Node]], section: str, name: yaml.Node, value: yaml.Node
) -> list[tuple[yaml.Node, yaml.Node]]:
    """`pairs` with `section.name: value`. A section that is no mapping is left for the loader to
    refuse, beside a second one, which it reports as a duplicate."""
    for index, (key, there) in enumerate(pairs):
        if key.value == section and isinstance(there, yaml.MappingNode):
            grown = _mapping([*there.value, (name, value)], there)
            return [*pairs[:index], (key, grown), *pairs[index + 1 :]]
    return [*pairs, (_scalar(section, name), _mapping([(name, value)], name))]


def _mapping(pairs: list[tuple[yaml.Node, yaml.Node]], at: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs, at.start_mark, at.end_mark)


def _scalar(text: str, at: yaml.Node) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, at.start_mark, at.end_mark)
