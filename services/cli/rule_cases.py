"""``apportion rules test``: cases written beside rules."""

from __future__ import annotations

from pathlib import Path

import typer

from services.cli.output import fail, print_faults, print_json, say

EXAMPLE = "Example: apportion rules test rules.yaml   (with cases in rules.test.yaml beside it)"


def try_cases(
    file: str = typer.Argument(..., help="A file of cases, or a rule set with NAME.test.yaml beside it."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Try cases on a rule set, without any service: which checks should be allowed when, or denied by whom."""
    from regional_limiter.model.errors import InvalidRules
    from services.cli.rules import parsed, read_file
    from services.rule_cases.cases import is_case_file, read_cases
    from services.rule_cases.trial import try_case

    text, path = read_file(file), Path(file)
    rules: Path | None = None
    if not is_case_file(text):
        rules, path = path, path.with_name(f"{path.stem}.test{path.suffix}")
        if not path.exists():
            fail(f"{file} has no cases: write them into {path}, see docs/rule-cases.md")
        text = read_file(str(path))
    try:
        cases = read_cases(text)
    except InvalidRules as error:
        print_faults(str(path), [(fault.place, fault.problem) for fault in error.faults])
        raise typer.Exit(1) from None
    if rules is None:
        if cases.rules is None:
            fail(f"{path}: rules: missing: the file of the rule set, such as rules: rules.yaml")
        rules = path.parent / cases.rules
    rule_set = parsed(str(rules), read_file(str(rules)))
    tried = [try_case(case, rule_set) for case in cases.cases]
    failed = [one for one in tried if one.problems]
    if as_json:
        shown = [
            {"name": one.name, "holds": not one.problems, "problems": [list(problem) for problem in one.problems]}
            for one in tried
        ]
        print_json({"cases": shown, "failed": len(failed)})
    else:
        for one in tried:
            typer.echo(f"{'fails' if one.problems else 'holds'}: {one.name}")
            for place, problem in one.problems:
                typer.echo(f"  {place}: {problem}")
    say(f"{len(tried) - len(failed)} of {len(tried)} cases hold")
    if failed:
        raise typer.Exit(1)
