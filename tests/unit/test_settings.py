"""The environment, good and bad."""

import pytest

from occupancy.settings import Settings, read_settings


def test_nothing_set_gives_the_defaults() -> None:
    assert read_settings({}) == Settings()


@pytest.mark.parametrize("off", ["0", "false", "NO", " off "])
def test_each_flag_goes_off(off: str) -> None:
    environ = {f"OCCUPANCY_{name}": off for name in ("ENABLED", "REPORT", "SPANS", "PHASES", "CALL_STACK", "MODEL")}
    settings = read_settings(environ)
    assert not any([settings.enabled, settings.report, settings.spans, settings.phases, settings.call_stack])
    assert not settings.model
    assert settings.request_id


def test_what_is_off_goes_on() -> None:
    assert read_settings({"OCCUPANCY_REPORT_CHILDREN": "1"}).report_children


def test_a_bad_flag_is_named_and_its_default_holds(caplog: pytest.LogCaptureFixture) -> None:
    settings = read_settings({"OCCUPANCY_SPANS": "maybe", "OCCUPANCY_REPORT_CHILDREN": "perhaps"})
    assert (settings.spans, settings.report_children) == (True, False)
    assert "OCCUPANCY_SPANS must be 0 or 1, not 'maybe'" in caplog.text
    assert "OCCUPANCY_REPORT_CHILDREN must be 0 or 1, not 'perhaps'" in caplog.text


def test_excluded_calls_are_regular_expressions(caplog: pytest.LogCaptureFixture) -> None:
    settings = read_settings({"OCCUPANCY_EXCLUDE": r"^metrics\.example, /health$ ,,(broken", "OCCUPANCY_JOURNAL": ""})
    assert [pattern.pattern for pattern in settings.exclude] == [r"^metrics\.example", "/health$"]
    assert "'(broken' is no regular expression" in caplog.text
    assert settings.journal is None
