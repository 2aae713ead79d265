"""Pure copying and binding: what every other family rests on."""

from examples.tiny_model.data import words
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article

COPY = Phrases(
    seen=(
        "Repeat: {x}", "Say: {x}", "Copy this: {x}", "Echo: {x}", "Write this again: {x}", "Repeat after me: {x}", "Copy: {x}", "Say this: {x}",
        "Please repeat: {x}", "Give this back to me: {x}", "Write: {x}", "Type this: {x}", "Repeat these words: {x}", "Print: {x}",
        "Can you say {x}?", "{x}\nRepeat that.",
    ),
    unseen=("Tell me this again: {x}", "Write the same words: {x}", "Copy what follows: {x}"),
)  # fmt: skip
SPELL = Phrases(
    seen=(
        "Spell: {x}", "Spell {x}.", "How do you spell {x}?", "Spell the word {x}.", "Letter by letter: {x}", "Give the letters of {x}.",
        "Please spell {x}", "Can you spell {x}?", "Spell out the word {x}", "The letters of {x}?", "Write {x} letter by letter.",
        "{x} - spell it",
    ),
    unseen=("I want you to spell {x}.", "What are the letters in {x}?"),
)  # fmt: skip
LOOKUPS = Phrases(
    seen=(
        "{pairs}\n{k}?", "{pairs}\nWhat is {k}?", "{pairs}\nValue of {k}?", "Given {pairs}. What is {k}?", "{pairs}. Tell me {k}.",
        "Look at this: {pairs}\nFind {k}.", "{pairs}\nGive me {k}.", "What is {k} here?\n{pairs}", "{pairs}\n{k} is what?",
        "Table:\n{pairs}\nEntry {k}?", "{pairs}\nWhich value has {k}?", "Pairs: {pairs}\nKey: {k}",
    ),
    unseen=("{pairs}\nNow say {k}.", "In this table, {pairs}, what goes with {k}?"),
)  # fmt: skip
# The verb of the answer follows the bar.
WHAT = Phrases(
    seen=(
        "{n} has {x}. {m} has {y}. What does {n} have?|has", "{n} owns {x} and {m} owns {y}. What does {n} own?|owns",
        "{m} has {y}. {n} has {x}. What does {n} have?|has", "{n} got {x}. {m} got {y}. What did {n} get?|got",
        "There are {n} with {x} and {m} with {y}. What does {n} have?|has", "{m} bought {y}; {n} bought {x}. What did {n} buy?|bought",
        "{n} sold {x}, but {m} sold {y}. What did {n} sell?|sold", "What does {n} have? {n} has {x} and {m} has {y}.|has",
        "{m} found {y}. {n} found {x}. What did {n} find?|found", "{n} wants {x}. {m} wants {y}. What does {n} want?|wants",
    ),
    unseen=("{n} has {x} while {m} has {y}. Tell me what {n} has.|has", "First {m} bought {y}, then {n} bought {x}. What did {n} buy?|bought"),
)  # fmt: skip
WHO = Phrases(
    seen=(
        "{n} has {x}. {m} has {y}. Who has {the_y}?|has", "{n} owns {x} and {m} owns {y}. Who owns {the_y}?|owns",
        "{m} has {y}. {n} has {x}. Who has {the_y}?|has", "{n} got {x}. {m} got {y}. Who got {the_y}?|got",
        "{m} bought {y}; {n} bought {x}. Who bought {the_y}?|bought", "There are {n} with {x} and {m} with {y}. Who has {the_y}?|has",
        "{n} sold {x}, but {m} sold {y}. Who sold {the_y}?|sold", "Who has {the_y}? {n} has {x} and {m} has {y}.|has",
        "{m} found {y}. {n} found {x}. Who found {the_y}?|found", "{n} wants {x}. {m} wants {y}. Who wants {the_y}?|wants",
    ),
    unseen=("{n} has {x} while {m} has {y}. Tell me who has {the_y}.|has", "First {m} bought {y}, then {n} bought {x}. Who bought {the_y}?|bought"),
)  # fmt: skip


def copy_text(draw: Draw) -> Task:
    text = " ".join(draw.token() for _ in range(draw.integer(1, 14)))
    return Task(draw.ask(draw.phrase(COPY).format(x=text), can_end=False), text, "I copy the words.", text)


def spell(draw: Draw) -> Task:
    word = draw.word() if draw.chance(0.5) else draw.invented()
    return Task(
        draw.ask(draw.phrase(SPELL).format(x=word), can_end=False), "-".join(word), f"{len(word)} letters.", word
    )


def bind_pairs(draw: Draw) -> Task:
    """Look one value up among key-value pairs with invented keys."""
    keys = list(dict.fromkeys(draw.invented(1, 2) for _ in range(draw.integer(3, 10))))
    values = [draw.token() for _ in keys]
    index = draw.integer(0, len(keys) - 1)
    sign = draw.one(("=", ":", "->", "is"))
    pairs = draw.one((", ", "\n", "; ")).join(f"{k} {sign} {v}" for k, v in zip(keys, values, strict=True))
    question = draw.phrase(LOOKUPS).format(pairs=pairs, k=keys[index])
    return Task(draw.ask(question, can_end=False), values[index], f"I look for {keys[index]}.", pairs + keys[index])


def owned_thing(draw: Draw) -> str:
    return draw.one(draw.one((words.THINGS, words.ANIMALS))) if draw.chance(0.6) else draw.invented()


def bind_people(draw: Draw) -> Task:
    """Who has what: two people, two things."""
    n, m, x, y = draw.name(), draw.name(), owned_thing(draw), owned_thing(draw)
    while m == n or x == y:
        m, y = draw.name(), owned_thing(draw)
    slots = {"n": n, "m": m, "x": with_article(x), "y": with_article(y), "the_y": f"the {y}"}
    ask_what = draw.chance(0.5)
    question, verb = draw.phrase(WHAT if ask_what else WHO).format(**slots).split("|")
    answer = f"{n} {verb} {slots['x']}." if ask_what else f"{m} {verb} the {y}."
    return Task(draw.ask(question), answer, "I read who has what.", f"{n}{x}{m}{y}")


def copy_plain(draw: Draw) -> Task:
    """A random line written twice, outside any chat."""
    text = " ".join(draw.token() for _ in range(draw.integer(4, 18)))
    return Task(f"{text} |", f" {text}", key=text, is_plain_text=True)
