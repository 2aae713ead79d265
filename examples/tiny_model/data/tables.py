"""Small tables of facts: capitals, opposites, sounds, plurals, young animals, colours of things."""

from typing import NamedTuple

from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article


class Table(NamedTuple):
    rows: tuple[tuple[str, str], ...]
    answer: str  # {x} is the left column, {y} the right one
    phrases: Phrases


def rows(text: str) -> tuple[tuple[str, str], ...]:
    """Parse "a:b, c:d" into pairs."""
    pairs = [entry.split(":") for entry in text.replace("\n", " ").split(",")]
    return tuple((left.strip(), right.strip()) for left, right in pairs)


CAPITALS = rows(
    """France:Paris, Italy:Rome, Spain:Madrid, Germany:Berlin, Norway:Oslo, Japan:Tokyo, Egypt:Cairo, Peru:Lima, Ireland:Dublin,
    Austria:Vienna, Greece:Athens, Portugal:Lisbon, Poland:Warsaw, Hungary:Budapest, Canada:Ottawa, Kenya:Nairobi, Finland:Helsinki,
    Russia:Moscow, China:Beijing, Cuba:Havana, Sweden:Stockholm, Denmark:Copenhagen, Belgium:Brussels, Iceland:Reykjavik,
    India:New Delhi, Thailand:Bangkok, Vietnam:Hanoi, Turkey:Ankara, Australia:Canberra, Mexico:Mexico City, Chile:Santiago,
    Argentina:Buenos Aires, Brazil:Brasilia, Morocco:Rabat, Ukraine:Kyiv, Croatia:Zagreb, Romania:Bucharest, Bulgaria:Sofia,
    Estonia:Tallinn, Latvia:Riga, England:London, Scotland:Edinburgh, South Korea:Seoul, Switzerland:Bern"""
)
OPPOSITES = rows(
    """hot:cold, big:small, fast:slow, up:down, happy:sad, open:closed, light:dark, old:new, rich:poor, hard:soft, long:short, wet:dry,
    full:empty, early:late, near:far, loud:quiet, high:low, good:bad, day:night, left:right, strong:weak, clean:dirty, thick:thin,
    sweet:sour, inside:outside, first:last, begin:end, push:pull, buy:sell, win:lose, love:hate, true:false, brave:afraid, heavy:light,
    above:below, always:never, many:few, tall:short, young:old, summer:winter"""
)
SOUNDS = rows(
    """cat:meow, dog:woof, cow:moo, duck:quack, sheep:baa, pig:oink, horse:neigh, lion:roar, bee:buzz, frog:croak, snake:hiss, owl:hoot,
    mouse:squeak, hen:cluck, wolf:howl, bird:tweet"""
)
PLURALS = rows(
    """mouse:mice, child:children, man:men, woman:women, foot:feet, tooth:teeth, goose:geese, person:people, sheep:sheep, fish:fish,
    cat:cats, dog:dogs, box:boxes, bus:buses, city:cities, baby:babies, leaf:leaves, knife:knives, wolf:wolves, book:books, bird:birds,
    house:houses, apple:apples, berry:berries, dish:dishes, glass:glasses, tree:trees, lamp:lamps, fox:foxes, day:days"""
)
YOUNG = rows(
    """cat:kitten, dog:puppy, cow:calf, horse:foal, sheep:lamb, pig:piglet, duck:duckling, goose:gosling, lion:cub, bear:cub, deer:fawn,
    goat:kid, hen:chick, frog:tadpole"""
)
THING_COLORS = rows(
    """the sky:blue, grass:green, snow:white, a lemon:yellow, blood:red, coal:black, the sun:yellow, milk:white, a carrot:orange,
    a tomato:red, chocolate:brown, a leaf:green, the sea:blue, a plum:purple, a banana:yellow, a strawberry:red, a flamingo:pink"""
)

TABLES = (
    Table(CAPITALS, "The capital of {x} is {y}.", Phrases(
        ("What is the capital of {x}?", "Capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}.",
         "Tell me the capital of {x}.", "What's the capital of {x}?", "What is the capital city of {x}?", "The capital of {x}?",
         "Do you know the capital of {x}?", "{x}: capital?", "Give me the capital of {x}.", "Which city is {x}'s capital?",
         "What is {x}'s capital?", "Say the capital of {x}.", "Which is the capital of {x}?"),
        ("I want to know the capital of {x}.", "What city is the capital of {x}?", "Can you name the capital of {x}?"))),
    Table(OPPOSITES, "The opposite of {x} is {y}.", Phrases(
        ("What is the opposite of {x}?", "Opposite of {x}?", "Say the opposite of {x}.", "What's the opposite of {x}?",
         "Give me the opposite of {x}.", "Which word is the opposite of {x}?", "Name the opposite of {x}.", "The opposite of {x}?",
         "Tell me the opposite of {x}.", "What is the reverse of {x}?", "{x} is the opposite of what?", "Find the opposite of {x}.",
         "Do you know the opposite of {x}?", "The contrary of {x}?", "Which word means the opposite of {x}?"),
        ("What word is the opposite of {x}?", "I want the opposite of {x}.", "Can you say the opposite of {x}?"))),
    Table(SOUNDS, "{a_x} says {y}.", Phrases(
        ("What sound does {an_x} make?", "What does {an_x} say?", "The sound of {an_x}?", "Which sound does {an_x} make?",
         "How does {an_x} sound?", "Tell me the sound of {an_x}.", "What noise does {an_x} make?", "Make the sound of {an_x}.",
         "{a_x} says what?", "What is the sound of {an_x}?", "Which noise does {an_x} make?", "Say what {an_x} says."),
        ("What kind of sound does {an_x} make?", "I want to hear what {an_x} says."))),
    Table(PLURALS, "The plural of {x} is {y}.", Phrases(
        ("What is the plural of {x}?", "Plural of {x}?", "Say the plural of {x}.", "Give me the plural of {x}.", "One {x}, two what?",
         "What's the plural of {x}?", "The plural of {x}?", "Name the plural of {x}.", "Tell me the plural of {x}.",
         "Write the plural of {x}.", "Which word is the plural of {x}?", "Do you know the plural of {x}?"),
        ("What is the plural form of {x}?", "I want the plural of {x}."))),
    Table(YOUNG, "A young {x} is called a {y}.", Phrases(
        ("What is a young {x} called?", "What do you call a baby {x}?", "Name of a young {x}?", "What is a baby {x}?",
         "What is the name for a young {x}?", "How do you call a young {x}?", "A young {x} is called what?", "Tell me what a baby {x} is called.",
         "What is a baby {x} called?", "The word for a young {x}?"),
        ("Which word is used for a young {x}?", "What do people call a young {x}?"))),
    Table(THING_COLORS, "{X} is {y}.", Phrases(
        ("What color is {x}?", "Which color is {x}?", "Color of {x}?", "Tell me the color of {x}.", "What is the color of {x}?",
         "What color does {x} have?", "Which color does {x} have?", "Say the color of {x}.", "Do you know the color of {x}?",
         "Name the color of {x}."),
        ("Of what color is {x}?", "I want to know the color of {x}."))),
)  # fmt: skip


def table_fact(draw: Draw) -> Task:
    table = TABLES[min(draw.integer(0, 7), 7) % len(TABLES)]  # capitals and opposites twice as often
    x, y = draw.one(table.rows)
    if table.rows is OPPOSITES and draw.chance(0.3) and x not in ("light", "short", "old"):
        reverse = {right: left for left, right in OPPOSITES if right not in ("light", "short", "old")}
        if y in reverse and y not in dict(OPPOSITES):
            x, y = y, x
    article = with_article(x)
    slots = {"x": x, "y": y, "X": x[0].upper() + x[1:], "an_x": article, "a_x": article[0].upper() + article[1:]}
    question = draw.phrase(table.phrases).format(**slots)
    question = question[0].upper() + question[1:]
    return Task(draw.ask(question), table.answer.format(**slots), "I know this.")
