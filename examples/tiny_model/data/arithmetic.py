"""Addition, subtraction and the 12 × 12 table, with carry steps as reasoning."""

from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task

QUESTIONS = Phrases(
    seen=(
        "What is {a} {sign} {b}?", "Compute {a} {sign} {b}.", "{a} {sign} {b} =", "{a} {sign} {b}", "Calculate {a} {sign} {b}",
        "What is {a} {word} {b}?", "How much is {a} {word} {b}?", "Tell me {a} {sign} {b}.", "Solve: {a} {sign} {b}",
        "I want to know {a} {word} {b}.", "What does {a} {sign} {b} equal?", "Give me the result of {a} {sign} {b}.",
        "{a} {word} {b} is what?", "What's {a} {sign} {b}?", "Work out {a} {word} {b}.", "Do the math: {a} {sign} {b}",
        "{a} {sign} {b} = ?", "Please evaluate {a} {sign} {b}", "What do I get for {a} {word} {b}?", "Result of {a} {word} {b}?",
    ),
    unseen=("How many is {a} {sign} {b}?", "I need the value of {a} {sign} {b}", "Can you say what {a} {word} {b} makes?"),
)  # fmt: skip


def addition_steps(a: int, b: int) -> str:
    carry, lines = 0, []
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        lines.append(f"{x} + {y} + {carry} = {total}, write {total % 10} carry {total // 10}")
        carry = total // 10
    return "\n".join(lines) + f"\nfinal carry {carry}\n{a + b}"


def subtraction_steps(a: int, b: int) -> str:
    borrow, lines = 0, []
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        rest = x - y - borrow
        if rest < 0:
            lines.append(f"{x} - {y} - {borrow} = {rest}, borrow, write {rest + 10}")
            borrow = 1
        else:
            lines.append(f"{x} - {y} - {borrow} = {rest}, write {rest}")
            borrow = 0
    return "\n".join(lines) + f"\n{a - b}"


def arithmetic(draw: Draw) -> Task:
    kind = draw.one("++---**" if draw.chance(0.5) else "+-")

    def operand() -> int:
        return draw.integer(0, 10 ** draw.one((1, 2, 2, 3, 3, 3)) - 1)

    if kind == "+":
        a, b = operand(), operand()
        answer, steps, word = a + b, addition_steps(a, b), "plus"
    elif kind == "-":
        b, a = sorted((operand(), operand()))
        answer, steps, word = a - b, subtraction_steps(a, b), "minus"
    else:
        a, b = draw.integer(0, 12), draw.integer(0, 12)
        answer, steps, word = a * b, f"{a} * {b} = {a * b}", "times"
    sign = draw.one(("*", "x")) if kind == "*" else kind
    question = draw.phrase(QUESTIONS).format(a=a, b=b, sign=sign, word=word)
    # The table is known by heart or not at all; small sums are too few to hold out.
    key = "" if kind == "*" or a + b < 40 else f"{a}{kind}{b}"
    return Task(draw.ask(question), str(answer), steps, key)
