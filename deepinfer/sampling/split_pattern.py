"""Which regular expressions a pre-tokenizer may split at: those of which it is certain that Oniguruma reads them.

The library of that name cannot be asked without risking a bare `Exception`. So its syntax is narrowed to a common core
with Python's `re`, which is asked instead. The patterns of released byte-level tokenizers lie within that core.
"""

import re
import warnings

_CATEGORIES = (
    "C Cc Cf Cn Co L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs "
    "Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari"
)
_PROPERTY = rf"\\[pP]\{{(?:{'|'.join(_CATEGORIES.split())})\}}"
_ESCAPE = r"\\[sSdDwWnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\[^A-Za-z0-9\s]"
_IN_CLASS = rf"(?:{_PROPERTY}|{_ESCAPE}|[^\\\[\]&]|&(?!&))"
_CLASS = rf"\[\^?{_IN_CLASS}+\]"
_CORE = re.compile(
    rf"(?:{_PROPERTY}|{_ESCAPE}"
    rf"|{_CLASS}"
    rf"|\(\?[=!](?:{_PROPERTY}|{_ESCAPE}|{_CLASS}|\w)\)(?![?*+{{])"  # looks ahead at one character
    r"|\((?!\?)|\(\?(?::|>|i:)|\)"
    r"|\{\d{1,2}(?:,\d{0,2})?\}"
    r"|[^\\\[\](){}])",
)


def why_unreadable(pattern: str) -> str:
    """A clause that says why `pattern` is not taken; empty where it is."""
    place = depth = 0
    while place < len(pattern):
        atom = _CORE.match(pattern, place)
        if atom is None or (depth and atom[0].startswith(("(?=", "(?!"))):  # Oniguruma repeats no group of these
            return f"{pattern[place : place + 12]!r} is not of the regular expressions known here"
        depth += atom[0].startswith("(") - (atom[0] == ")")
        depth -= atom[0].startswith(("(?=", "(?!"))
        place = atom.end()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of set operations that `re` may learn one day
            re.compile(re.sub(_PROPERTY, r"\\w", pattern))
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return ""
