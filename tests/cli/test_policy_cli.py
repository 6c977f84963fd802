"""`governor policy` and `governor keys` as a person or a CI job meets them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from governor.cli.app import COMMANDS, build_app
from governor.core.keys import hash_of_key, is_key

VERSION = "apiVersion: governor.dev/v1\n"
FIVE_ERRORS = """\
apiVersion: governor.dev/v1
tenants:
  acme:
    budgett: 4k
    budget:
      max: -3
    mode: enforced
    deadline: 90x
    keys: [gk-0123456789012345678901234567890123456789012]
"""
POLICY = """\
apiVersion: governor.dev/v1
defaults:
  budget: {max: 8k}
tenants:
  acme:
    allow_models: ["q*"]
    budget: {default: 2k}
    answer_reserve: 100
    models:
      "q-small": {budget: {default: 1k}}
    priorities:
      batch: {deadline: 10m}
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return written(tmp_path, POLICY)


def written(folder: Path, text: str) -> Path:
    file = folder / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def run(*arguments: object, typed: str | None = None) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(build_app(words), words, input=typed)


def run_json(*arguments: object, code: int = 0, typed: str | None = None) -> Any:
    result = run(*arguments, "--json", typed=typed)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_check_accepts_a_good_file(policy: Path) -> None:
    result = run("policy", "check", policy)
    assert result.exit_code == 0
    assert "ok, 1 tenant(s)" in result.stdout


def test_check_shows_every_error_with_line_range_and_the_line_itself(tmp_path: Path) -> None:
    result = run("policy", "check", written(tmp_path, FIVE_ERRORS))
    assert result.exit_code == 1
    output = result.stdout
    assert "5 errors" in output
    for path, line in [("budgett", 4), ("budget.max", 6), ("mode", 7), ("deadline", 8)]:
        row = next(row for row in output.splitlines() if f"tenants.acme.{path} " in row)
        assert f" {line} " in row
    assert "0 to 1048576 tokens" in output
    assert "did you mean enforce?" in output
    assert "mode: enforced" in output
    assert "gk-0" not in output


def test_check_reports_every_file_and_fails_for_one(policy: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("tenants: [", encoding="utf-8")
    result = run("policy", "check", policy, bad, tmp_path / "absent.yaml")
    assert result.exit_code == 1
    assert "ok, 1 tenant(s)" in result.stdout
    assert "is not YAML" in result.stdout
    assert "cannot be read" in result.stdout


def test_check_as_json_has_the_places(tmp_path: Path) -> None:
    found = run_json("policy", "check", written(tmp_path, FIVE_ERRORS), code=1)["files"][0]
    assert found["ok"] is False
    assert [error["line"] for error in found["errors"]] == [4, 6, 7, 8, 9]
    assert found["errors"][0]["nearest"] == "budget"


def test_check_shows_warnings_and_passes(tmp_path: Path) -> None:
    result = run("policy", "check", written(tmp_path, "tenants: {default: {}}\n"))
    assert result.exit_code == 0
    assert "there is no apiVersion" in result.stdout


def test_show_lists_what_the_file_states_and_effective_everything(policy: Path) -> None:
    stated = run_json("policy", "show", "-f", policy)["tenants"]["acme"]
    assert stated["budget.max"] == {"value": "8192", "from": "line 3 (defaults)"}
    assert stated["budget.default"] == {"value": "2048", "from": "line 7 (tenants.acme)"}
    assert "queue.ttl" not in stated
    effective = run_json("policy", "show", "-f", policy, "--effective")["tenants"]["acme"]
    assert effective["queue.ttl"] == {"value": "30s", "from": "built in"}


def test_show_of_a_model_names_the_override(policy: Path) -> None:
    arguments = ("-f", policy, "-t", "acme", "-m", "q-small", "-p", "batch")
    ((title, values),) = run_json("policy", "show", *arguments)["tenants"].items()
    assert "models.q-small and priorities.batch" in title
    assert values["budget.default"]["from"] == "line 10 (tenants.acme.models.q-small)"
    assert values["deadline"]["from"] == "line 12 (tenants.acme.priorities.batch)"
    assert "1024" in run("policy", "show", *arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-t", "acm"), "did you mean 'acme'?"),
        (("-t", "acme", "-m", "llama"), "allowed: q*"),
        (("-m", "q"), "--model needs --tenant"),
    ],
)
def test_what_is_unknown_is_told(policy: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("policy", "show", "-f", policy, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert message in run_json("policy", "show", "-f", policy, *arguments, code=1)["error"]


@pytest.mark.parametrize(
    ("arguments", "tokens", "line"),
    [
        ((), 2_048, 3),
        (("--effort", "max"), 8_192, 6),
        (("--effort", "low"), 2_048, 8),
        (("--budget", "100"), 100, 8),
        (("--budget", "0"), 0, 1),
        (("--budget", "100000"), 8_192, 6),
        (("--max-completion", "300"), 200, 9),
        (("--max-completion", "100"), 0, 9),
        (("--budget", "5", "--wrap-up", "9"), 5, 10),
    ],
)
def test_explain_names_the_line_of_the_precedence_table(
    policy: Path, arguments: tuple[str, ...], tokens: int, line: int
) -> None:
    whole = ("policy", "explain", "-f", policy, "-t", "acme", "-m", "q", *arguments)
    found = run_json(*whole)
    shown = run(*whole)
    assert shown.exit_code == 0
    (marked,) = [row for row in shown.stdout.splitlines() if "→" in row]
    if line != 10:
        assert found["thinking_tokens"] == tokens
    else:
        assert found["reason"] == "thinking_off"
    assert found["applied_line"] == line
    assert f" {line} " in marked


def test_explain_of_an_unlimited_budget_marks_no_line(tmp_path: Path) -> None:
    file = written(tmp_path, VERSION + "tenants: {a: {}}\n")
    result = run("policy", "explain", "-f", file, "-t", "a", "-m", "q")
    assert "→" not in result.stdout
    assert "no budget (unlimited)" in result.stdout


def test_explain_with_landing_off_says_so(tmp_path: Path) -> None:
    file = written(tmp_path, VERSION + "tenants: {a: {budget: 4k, landing: false}}\n")
    found = run_json("policy", "explain", "-f", file, "-t", "a", "-m", "q")
    assert (found["reason"], found["applied_line"]) == ("not_governed", 2)


def test_a_broken_file_stops_show_and_explain_with_all_its_errors(tmp_path: Path) -> None:
    file = written(tmp_path, FIVE_ERRORS)
    for arguments in (("show",), ("explain", "-t", "acme", "-m", "q")):
        result = run("policy", *arguments, "-f", file)
        assert result.exit_code == 1
        assert "5 errors" in result.stdout


def test_without_a_file_the_shipped_policy_is_meant() -> None:
    shown = run_json("policy", "show")["tenants"]["default"]
    assert shown["budget.default"]["value"] == "400"


def test_the_file_may_come_from_the_environment(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVERNOR_POLICY_FILE", str(policy))
    assert list(run_json("policy", "show")["tenants"]) == ["acme"]


def test_an_issued_key_is_accepted_once_its_hash_is_in_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, POLICY)
    issued = run_json("keys", "issue", "-t", "acme", "-f", file)
    key, (entry,) = issued["key"], issued["keys"]
    assert is_key(key)
    assert entry == {"hash": hash_of_key(key)}
    before = run_json("keys", "check", "-f", file, typed=f"{key}\n", code=1)
    assert before["verdict"] == "unknown"
    file = written(tmp_path, POLICY + f"    keys: [{entry['hash']}]\n")
    after = run_json("keys", "check", "-f", file, typed=f"{key}\n")
    assert (after["verdict"], after["tenant"]) == ("accepted", "acme")


def test_what_issue_prints_can_be_pasted(tmp_path: Path) -> None:
    result = run("keys", "issue", "-t", "acme")
    assert result.exit_code == 0
    _, _, pasted = result.stdout.partition("for the policy file:\n")
    assert run("policy", "check", written(tmp_path, VERSION + pasted)).exit_code == 0
    assert "gk-" not in pasted


def test_two_keys_are_never_alike() -> None:
    assert len({run_json("keys", "issue", "-t", "a")["key"] for _ in range(5)}) == 5


def test_rotation_gives_the_present_keys_an_end(tmp_path: Path) -> None:
    old = run_json("keys", "issue", "-t", "acme")["keys"][0]["hash"]
    file = written(tmp_path, POLICY + f"    keys: [{old}]\n")
    result = run("keys", "issue", "-t", "acme", "-f", file, "--overlap-days", "7")
    _, _, pasted = result.stdout.partition("for the policy file:\n")
    assert f"- hash: {old}\n        not_after: " in pasted
    assert run("policy", "check", written(tmp_path, VERSION + pasted)).exit_code == 0


def test_a_key_for_an_unknown_tenant_is_refused(policy: Path) -> None:
    result = run("keys", "issue", "-t", "other", "-f", policy)
    assert result.exit_code == 1
    assert "gk-" not in result.output


def test_a_typed_key_is_not_echoed(policy: Path) -> None:
    result = run("keys", "check", "-f", policy, typed="gk-secret\n")
    assert result.exit_code == 1
    assert "gk-secret" not in result.output


def test_schema_is_printed_as_committed() -> None:
    committed = Path(__file__).parents[2] / "policies" / "schema.json"
    assert run("policy", "schema").stdout == committed.read_text(encoding="utf-8")


def test_help_names_every_command_and_imports_none() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command.name in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_imported(command: Any) -> None:
    result = run(command.name, "--help")
    assert result.exit_code == 0, result.output


def test_an_unknown_command_is_refused() -> None:
    assert run("polcy").exit_code == 2
