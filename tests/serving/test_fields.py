"""Names of fields: unknown ones are refused by name, whatever their size."""

import difflib
from typing import Any

import pytest

from deepinfer.serving.fields import FieldError, check_inner, check_names


def test_a_name_of_megabytes_is_compared_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def close(name: str, names: list[str], most: int) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", close)
    with pytest.raises(FieldError, match="unknown parameter") as caught:
        check_names({"x" * 4_000_000: 1}, used=("model",))
    assert len(compared[0]) <= 64 and len(str(caught.value)) < 300


def test_a_near_miss_is_proposed() -> None:
    with pytest.raises(FieldError, match="did you mean temperature"):
        check_names({"tempreature": 1}, used=("temperature",))


@pytest.mark.parametrize("value", [None, 3, "text", {"a": 1}, {"a": 1, "b": None}])
def test_inside_a_body_null_is_no_field_and_other_kinds_are_for_others(value: Any) -> None:
    check_inner(value, ("a",), "place")


def test_a_name_inside_a_body_is_refused_with_its_path() -> None:
    with pytest.raises(FieldError) as caught:
        check_inner({"a": 1, "b": 2}, ("a",), "messages[3]")
    assert caught.value.param == "messages[3].b"
