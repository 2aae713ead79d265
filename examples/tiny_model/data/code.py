"""One-line Python functions, and the hole in the middle."""

from examples.tiny_model.data import words
from examples.tiny_model.data.chat import FIM_BEGIN, FIM_END, FIM_HOLE
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task

# (usual name, parameters, expression, what it returns)
FUNCTIONS = (
    ("add", "a, b", "a + b", "the sum of two numbers"), ("sub", "a, b", "a - b", "the difference of two numbers"),
    ("multiply", "a, b", "a * b", "the product of two numbers"), ("square", "x", "x * x", "the square of a number"),
    ("is_even", "n", "n % 2 == 0", "whether a number is even"), ("is_odd", "n", "n % 2 == 1", "whether a number is odd"),
    ("last", "items", "items[-1]", "the last item of a list"), ("first", "items", "items[0]", "the first item of a list"),
    ("total", "items", "sum(items)", "the sum of a list"), ("largest", "items", "max(items)", "the largest item of a list"),
    ("smallest", "items", "min(items)", "the smallest item of a list"), ("shout", "text", "text.upper()", "the text in upper case"),
    ("quiet", "text", "text.lower()", "the text in lower case"), ("double", "x", "x * 2", "twice a number"),
    ("half", "x", "x / 2", "half of a number"), ("size", "items", "len(items)", "the length of a list"),
    ("backwards", "text", "text[::-1]", "the text backwards"), ("ordered", "items", "sorted(items)", "the list in order"),
    ("unique", "items", "list(set(items))", "the different items of a list"), ("is_empty", "items", "not items", "whether a list is empty"),
)  # fmt: skip
ASKS = Phrases(
    seen=(
        "Write a Python function {f} that returns {what}.", "Python function {f}: {what}", "Define {f} in Python. It returns {what}.",
        "Write {f} in Python. It should return {what}.", "In Python, write a function {f} that returns {what}.",
        "I need a Python function {f} for {what}.", "Code a function {f} in Python that returns {what}.",
        "Give me a Python function called {f} that returns {what}.", "Please write the Python function {f}. It returns {what}.",
        "Python: {f} returns {what}.", "Make a Python function {f} which returns {what}.", "Can you write a Python function {f} for {what}?",
        "Write Python code for {f}, it returns {what}.", "Function {f} in Python, returning {what}.",
        "Show me a Python function {f} that gives {what}.",
    ),
    unseen=("Create a Python function named {f} that gives back {what}.", "How do I write {f} in Python so that it returns {what}?"),
)  # fmt: skip


def function_name(draw: Draw, usual: str) -> str:
    return usual if draw.chance(0.3) else f"{draw.one(words.VERBS)}_{draw.one(words.NOUNS)}"


def python_function(draw: Draw) -> Task:
    usual, parameters, expression, what = draw.one(FUNCTIONS)
    name = function_name(draw, usual)
    body = f"def {name}({parameters}):\n    return {expression}\n"
    question = draw.phrase(ASKS).format(f=name, what=what)
    return Task(draw.ask(question), f"```python\n{body}```", f"The function {name} returns {expression}.", name + usual)


def fill_in_the_middle(draw: Draw) -> Task:
    """A hole that the rest determines: the expression of a well-known name, or the repeated name in a call."""
    usual, parameters, expression, _ = draw.one(FUNCTIONS)
    if draw.chance(0.5):
        before, hole, after = f"def {usual}({parameters}):\n    return ", expression, "\n"
        key = ""
    else:
        name = f"{draw.one(words.VERBS)}_{draw.one(words.NOUNS)}"
        before = f"def {name}({parameters}):\n    return {expression}\n\nprint("
        hole, after = name, f"({parameters}))\n"
        key = name + usual
    return Task(f"{FIM_BEGIN}{before}{FIM_HOLE}{after}{FIM_END}", hole, key=key, is_plain_text=True)
