"""Each case has its test, and each test names its case."""

import re
from pathlib import Path

HERE = Path(__file__).parent
EXPECTED = {
    "test_config_cases.py": [f"c{number:02}" for number in range(1, 13)],
    "test_config_values.py": [f"c{number:02}" for number in range(13, 23)],
    "test_parallel_cases.py": [*(f"p{number:02}" for number in range(1, 12)), "n01", "n02", "n03"],
    "test_first_run.py": [f"f{number:02}" for number in range(1, 19)],
}
ELSEWHERE = {  # case → the test that has it
    "c08": ("cli/test_sweep.py", "test_a_failure_is_told_before_the_next_run_starts"),
}


def test_every_case_has_a_test() -> None:
    for file, cases in EXPECTED.items():
        names = re.findall(r"^def test_(\w+)", (HERE / file).read_text(), re.MULTILINE)
        found = {case for name in names for case in re.findall(r"(?:^|_)([cpnf]\d\d)(?=_)", name)}
        assert found == set(cases) - set(ELSEWHERE), file


def test_cases_with_other_tests_are_there() -> None:
    for case, (file, test) in ELSEWHERE.items():
        assert f"\ndef {test}(" in (HERE.parent / file).read_text(), case
