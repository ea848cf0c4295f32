"""A latency budget as JUnit XML, which CI systems show: a suite for each environment, a case for each check."""

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from occupancy.analysis.latency_budget import Check
    from occupancy.probe.budget_result import BudgetResult, EnvironmentResult


def to_junit(result: "BudgetResult") -> str:
    """Give the XML. A check that fails is a failure; an environment that could not be measured is an error."""
    suites = ET.Element("testsuites", name="occupancy budget", time=f"{result.wall_s:.3f}")
    for one in result.environments:
        _add_suite(suites, one, result.measured_at)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_suite(suites: ET.Element, one: "EnvironmentResult", measured_at: str) -> None:
    verdict = one.verdict
    broken = one.error if verdict is None else verdict.invalid
    if not one.is_complete:
        broken = "interrupted before it was measured to its end"
    checks = () if verdict is None else verdict.checks
    failures = sum(not check.passed for check in checks) if broken is None else 0
    attributes = {
        "name": _clean(one.name),
        "timestamp": measured_at,
        "tests": str(len(checks) if broken is None else 1),
        "failures": str(failures),
        "errors": str(int(broken is not None)),
    }
    suite = ET.SubElement(suites, "testsuite", attributes)
    if broken is not None:
        case = ET.SubElement(suite, "testcase", classname=f"budget.{_clean(one.name)}", name="measured")
        ET.SubElement(case, "error", message=_clean(broken))
        return
    for check in checks:
        case = ET.SubElement(suite, "testcase", classname=f"budget.{_clean(one.name)}", name=check.name)
        if not check.passed:
            ET.SubElement(case, "failure", message=describe(check))
        ET.SubElement(case, "system-out").text = f"{describe(check)}; evidence: {check.evidence}"


def describe(check: "Check") -> str:
    """Say in one line what was measured against what."""
    if check.value is None:
        return f"{check.name}: nothing to measure (n={check.n}), the limit is {check.limit:g}"
    at_least = ">= " if check.is_at_least else ""
    unit = "" if check.name == "errors" else " s"
    sign = "<" if check.passed else "not <"
    return f"{check.name} {at_least}{check.value:.3f}{unit} {sign} {check.limit:g}{unit} (n={check.n})"


def _clean(text: str) -> str:
    """Take out what XML 1.0 cannot hold."""
    return "".join(char if char.isprintable() else "?" for char in text)
