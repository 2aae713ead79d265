"""Random command lines: mostly right, with all that fingers, shells and other engines' habits do to them."""

import random
from collections.abc import Callable
from typing import get_args, get_origin

from msgspec import Struct

from deepinfer.config.argv import VERBS, WORDS
from deepinfer.config.keys import ANY, leaf_keys
from deepinfer.config.misnamed import options_of
from deepinfer.config.specs import Spec

GROUPS = tuple(Spec.__struct_fields__)
KEYS = tuple(key for key in leaf_keys() if ANY not in key)
ODD = "'\"\\,:;|(){}[]<>$`~+@#%&*!?^= \t\n\x00\x07\x1b\x7f\u00e4\u4f60\u597d\U0001f600\u202e\udcff/.-_"
NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "007",
    "1_000",
    "1e3",
    "5e8",
    "1e-3",
    "1e999",
    "-0.0",
    "nan",
    "inf",
    "-.inf",
    str(2**63),
    str(10**40),
    "0x10",
    "1.5",
    "64k",
    "64Ki",
    "80GiB",
    "80gib",
    "1.5.5GB",
    "2.5TB/s",
    "250ms",
    "96%",
    "155T",
    "5 furlongs",
)
VALUES = (
    "",
    "null",
    "none",
    "off",
    "true",
    "auto",
    "atuo",
    "???",
    "${x}",
    "${model.name}",
    "${oc.env:HOME}",
    "${now:%Y}",
    "${",
    "}",
    "[a,b]",
    "[a",
    "[[1]]",
    "{a: 1}",
    "{a: {b: [c]}}",
    "{a",
    "a,b",
    "range(1,3)",
    "range(1,3,0)",
    "choice(a,b)",
    "glob(*)",
    "sort(3,1)",
    "interval(0,1)",
    "int(x)",
    "extend_list(1)",
    "'it''s'",
    "'a\\', b'",
    '"a',
    "a|b",
    "a:=b",
    "-m",
    "你好",
    "!!python/object:os.system",
    "*a",
    "&a",
    "x" * 3000,
    "[" * 200,
    "{a:" * 100,
)


class Argument(Struct, frozen=True):
    """One argument. `names` is the part that a refusal must repeat; empty where the argument may be right."""

    text: str
    names: str = ""


def command_line(rng: random.Random) -> list[Argument]:
    """Up to six arguments, now and then with a verb and flags."""
    makers = rng.choices(tuple(MAKERS), weights=tuple(MAKERS.values()), k=rng.randint(1, 6))
    made = [make(rng) for make in makers]
    if rng.random() < 0.2:
        made.insert(0, Argument(rng.choice(("plan", "plan", "generate", "pln", "doctor"))))
    if rng.random() < 0.1:
        made.append(made[rng.randrange(len(made))])
    return made


def _option(rng: random.Random) -> Argument:
    group = rng.choice(GROUPS)
    return Argument(f"{group}={rng.choice(options_of(group))}")


def _side(rng: random.Random) -> Argument:
    side = rng.choice(("prefill", "decode", "both"))
    return Argument(f"parallel@deploy.{side}.parallel={rng.choice(options_of('parallel'))}")


def _value(rng: random.Random) -> Argument:
    return Argument(f"{rng.choice(('', '', '', '+', '++'))}{rng.choice(KEYS)}={_any_value(rng)}")


def _fitting(rng: random.Random) -> Argument:
    """A key with a value that its type says to be right, where that is quickly told."""
    key = rng.choice(KEYS)
    kinds = [kind for kind in (get_args(leaf_keys()[key]) or (leaf_keys()[key],))]
    words = [str(word) for kind in [leaf_keys()[key], *kinds] if get_origin(kind) for word in get_args(kind)]
    plain = [word for word in words if word.isidentifier()]
    return Argument(f"{key}={rng.choice(plain or ['1', '2', '64', 'auto', 'null', 'false'])}")


def _wrong_option(rng: random.Random) -> Argument:
    group = rng.choice(GROUPS)
    option = _typo(rng, rng.choice(options_of(group)))
    return Argument(f"{group}={option}", "" if option in options_of(group) else option)


def _wrong_key(rng: random.Random) -> Argument:
    key = _typo(rng, rng.choice(KEYS))
    return Argument(f"{key}={rng.choice(NUMBERS)}", "" if key in KEYS or key in WORDS else key.rpartition(".")[2])


def _marked(rng: random.Random) -> Argument:
    """Hydra's own signs in front of, or inside, a key."""
    key = rng.choice((*GROUPS, *KEYS))
    return Argument(
        rng.choice(
            (
                f"~{key}",
                f"~{key}=1",
                f"+{key}=none",
                f"++{key}@a.b=none",
                f"{key}@=x",
                f"@{key}=x",
                f"{key.replace('.', '/')}=x",
                f"{key}.a.b.c.d=1",
                f"{key}..x=1",
                f".{key}=1",
                f"{key}[0]=1",
                f"hydra.{key}=1",
                f"hydra/{key}=x",
            )
        )
    )


def _hydra(rng: random.Random) -> Argument:
    return Argument(
        rng.choice(
            (
                "hydra.run.dir=/nowhere",
                "hydra/launcher=basic",
                "hydra.sweeper.params={a: 1}",
                "hydra.searchpath=[file:///nowhere]",
                "hydra.searchpath=[pkg://os]",
                "hydra.searchpath=5",
                "hydra=x",
                "hydra.mode=MULTIRUN",
                "+hydra.foo=1",
                "~hydra",
            )
        )
    )


def _flag(rng: random.Random) -> Argument:
    return Argument(
        rng.choice(("--tp=8", "-x", "--max-tokens", "-", "--", "---", "--cfg=jb", "--resolve", "-sh", "--no"))
    )


def views(rng: random.Random) -> tuple[str, ...]:
    """Flags that show something and end, rightly or wrongly typed; never those that begin a sweep or a completion."""
    return rng.choice(
        (
            ("--help",),
            ("-h",),
            ("--version",),
            ("--cfg", "job"),
            ("-c", "all", "--resolve"),
            ("--cfg=hydra",),
            ("--cfg", "job", "--package", "cache"),
            ("--cfg", "job", "-p", "no.such"),
            ("--cfg",),
            ("--package", "cache"),
            ("--info",),
            ("-i", "defaults-tree"),
            ("--info", "searchpath"),
            ("--config-dir", "/nowhere"),
            ("-cd=",),
            ("--version=2",),
        )
    )


def _word(rng: random.Random) -> Argument:
    return Argument(f"{rng.choice(tuple(WORDS))}={rng.choice(('', 'json', 'x', '/nowhere', 'ranks'))}")


def _noise(rng: random.Random) -> Argument:
    letters = [chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000)))) for _ in range(rng.randint(0, 12))]
    return Argument("".join(letters) + rng.choice(("", "=", "=1")))


def _spoilt(rng: random.Random) -> Argument:
    """A sound argument with a few characters put in, taken out or doubled."""
    text = rng.choice((_option, _value, _side, _fitting))(rng).text
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        cut = rng.choice((text[at:], text[at + 1 :], text[at : at + 1] + text[at:]))
        text = text[:at] + rng.choice(("", rng.choice(ODD), rng.choice(ODD))) + cut
    return Argument(text)


def _verb(rng: random.Random) -> Argument:
    return Argument(rng.choice(VERBS))


def _any_value(rng: random.Random) -> str:
    return rng.choice((rng.choice(NUMBERS), rng.choice(VALUES), rng.choice(VALUES), "".join(rng.choices(ODD, k=4))))


def _typo(rng: random.Random, word: str) -> str:
    at = rng.randrange(len(word))
    return rng.choice((word[:at] + word[at + 1 :] or "x", word[:at] + "q" + word[at:], word.upper(), word[::-1]))


MAKERS: dict[Callable[[random.Random], Argument], int] = {
    _option: 20,
    _side: 3,
    _value: 20,
    _fitting: 15,
    _wrong_option: 8,
    _wrong_key: 8,
    _marked: 8,
    _hydra: 3,
    _flag: 2,
    _word: 3,
    _noise: 5,
    _spoilt: 15,
    _verb: 1,
}
