"""The quoted form that messages offer is read by Hydra as exactly the text that was meant."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from deepinfer.config.quoting import quoted

PARSER = OverridesParser.create()
QUOTES = ("'", '"')


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
@example("\\")
@example('\\"')
@example('a\\\\" b \\')
@example("It's 5, right?")
@example("${x}")
@example("a=b")
def test_round_trip(text: str) -> None:
    if len(text) > 1 and text[0] == text[-1] and text[0] in QUOTES:
        text = f" {text}"  # a quoted text is taken to be quoted already
    (override,) = PARSER.parse_overrides([quoted("key", text)])
    assert override.value() == text
