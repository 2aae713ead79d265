"""Short stories from a grammar that keeps track of who, what and where, and questions about them."""

from typing import NamedTuple

from examples.tiny_model.data import words
from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article


class Cast(NamedTuple):
    """Everything a plot may mention."""

    hero: str
    friend: str
    animal: str
    color: str
    thing: str
    place: str
    food: str
    weather: str
    feeling: str


OPENINGS = (
    "One {weather} day, {hero} went to the {place}.", "It was a {weather} morning. {hero} walked to the {place}.",
    "Once upon a time, {hero} went to the {place} on a {weather} day.", "On a {weather} afternoon, {hero} came to the {place}.",
)  # fmt: skip
POSSESSIONS = (
    "{hero} had {a_color_thing}.", "{hero} carried {a_color_thing}.", "In one hand, {hero} held {a_color_thing}.",
    "{hero} had brought {a_color_thing}.",
)  # fmt: skip
FEELINGS = ("{hero} was very {feeling}.", "{hero} felt {feeling}.", "It made {hero} {feeling}.")
ENDINGS = (
    "The end.", "It was a good day.", "And they were all happy.", "{hero} smiled all the way home.", "That night, {hero} slept well.",
    "It was a day to remember.",
)  # fmt: skip

PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lost": (
        ("Then the {thing} fell and was lost.", "But soon the {thing} was gone."),
        ('"Oh no! Where is my {thing}?" said {hero}.', '"I cannot find my {thing}!" cried {hero}.'),
        ("A little {animal} heard {hero} and came to help.", "A friendly {animal} looked out from behind a tree."),
        ('"I can help you look," said the {animal}.', '"Do not worry," said the {animal}. "Let us look together."'),
        ("They looked and looked. At last they found the {color} {thing} under a tree.",
         "They looked under every leaf until they saw the {color} {thing} in the grass."),
        ('"Thank you!" said {hero}. The {animal} smiled.', '{hero} hugged the {animal}. "You are a true friend."'),
    ),
    "share": (
        ("{hero} met {friend} there.", "{friend} was there too."),
        ('"Can I play with your {thing}?" asked {friend}.', '"What a nice {thing}! May I hold it?" asked {friend}.'),
        ("At first {hero} did not want to share.", "{hero} was not sure."),
        ('But {friend} looked sad, so {hero} said, "Yes, we can play together."',
         '{hero} thought for a while. "Yes, let us share it," said {hero}.'),
        ("They played with the {color} {thing} all day.", "They took turns with the {color} {thing} until evening."),
        ("{hero} learned that sharing is fun.", "From that day on, {hero} and {friend} were best friends."),
    ),
    "hungry": (
        ("A hungry {animal} was sitting by the path.", "By the path sat {an_animal} that looked tired and thin."),
        ('"I have not eaten today," said the {animal}.', '"I am so hungry," said the {animal}.'),
        ("{hero} opened a bag and gave the {animal} some {food}.", "{hero} had some {food} and gave it all to the {animal}."),
        ("The {animal} ate the {food} and felt much better.", "Soon the {food} was gone and the {animal} could run again."),
        ('"You are kind, {hero}," said the {animal}. They became good friends.',
         'The {animal} bowed. "I will never forget you, {hero}."'),
    ),
    "dark": (
        ("It was getting dark and {hero} could not find the way home.", "The sun went down, and {hero} did not know the way."),
        ("{hero} held the {color} {thing} and felt scared.", "{hero} sat down with the {color} {thing} and began to cry."),
        ('Then {an_animal} came and said, "Follow me."', 'Out of the dark came {an_animal}. "I know the way," it said.'),
        ("They walked past the trees and over the hill.", "They crossed a little bridge and went around the pond."),
        ("Soon {hero} saw the light of home. {hero} hugged the {animal} and said goodnight.",
         "At last they saw the house of {hero}. The {animal} waved and went back into the night."),
    ),
    "build": (
        ("{hero} saw {an_animal} without a home.", "{an_animal_up} sat in the rain and had no home."),
        ('"We can build a house," said {hero}.', '"I will build you a house," said {hero}.'),
        ("{friend} came and brought some wood.", "{friend} came along and wanted to help."),
        ("They worked until the evening, and the {animal} carried small stones.", "They cut and painted, and soon the house was {color}."),
        ("The {animal} moved in at once and asked them to stay for {food}.", "The {animal} was so glad that it danced in front of the door."),
    ),
    "present": (
        ("It was the birthday of {friend}.", "{friend} had a birthday on that day."),
        ("{hero} wanted to give {friend} a present but had no money.", "{hero} had nothing to give but the {thing}."),
        ('"Give what you like best," said an old {animal}.', 'An old {animal} said, "A good present comes from the heart."'),
        ("So {hero} put the {color} {thing} into a box and tied it with a ribbon.", "So {hero} wrapped the {color} {thing} in paper."),
        ('"It is the best present of all!" said {friend}.', "{friend} opened it and laughed with joy."),
        ("Then they ate {food} together.", "They sat in the sun and shared some {food}."),
    ),
}  # fmt: skip
PLOT_NAMES = list(PLOTS)

ASKS = Phrases(
    seen=(
        "Tell me a short story about {x} and {y}.", "Write a story with {x} and {y}.", "A story about {x} and {y}, please.",
        "Tell a story about {x} and {y}.", "Can you tell me a story about {x} and {y}?", "Write a short story about {x} and {y}.",
        "I would like a story about {x} and {y}.", "Make up a story with {x} and {y}.", "Story about {x} and {y}?",
        "Please write a little story about {x} and {y}.", "Tell me about {x} and {y} in a short story.",
        "Invent a story about {x} and {y}.", "Give me a short tale about {x} and {y}.", "I want to hear a story with {x} and {y}.",
        "Once there was {x} and there was {y}. Tell me more.",
    ),
    unseen=("Could you make up a short story about {x} and {y}?", "I want a tale of {x} and {y}.", "Write something nice about {x} and {y}."),
)  # fmt: skip
SINGLE_ASKS = Phrases(
    seen=(
        "Tell me a short story about {x}.", "Tell me a story about {x}.", "Write a story about {x}.", "A story about {x}, please.",
        "Can you tell me a story about {x}?", "Write a short story about {x}.", "Please tell me a little story about {x}.",
        "I would like a story about {x}.", "Story about {x}?", "Make up a story with {x}.",
    ),
    unseen=("Could you make up a story about {x}?", "I want a tale of {x}."),
)  # fmt: skip
ANY_ASKS = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "I want to hear a story.",
    "Story time!",
    "A story, please.",
)
QUESTION_FORMS = (
    "{story}\n{question}",
    "{question}\n{story}",
    "Story: {story}\nQuestion: {question}",
    "{story} {question}",
)
QUESTIONS: tuple[tuple[str, str, Phrases], ...] = (
    ("hero", "{hero}", Phrases(("Who went out?", "Who is the story about?", "What is the name of the hero?", "Who is it about?"),
                               ("Whom is this story about?",))),
    ("weather", "It was {weather}.", Phrases(("What was the weather like?", "How was the weather?", "What kind of day was it?"),
                                             ("What weather was there?",))),
    ("place", "To the {place}.", Phrases(("Where did {hero} go?", "Which place did {hero} go to?", "To which place did {hero} go?"),
                                         ("Where was {hero} going?",))),
    ("thing", "{a_color_thing_up}.", Phrases(("What did {hero} have?", "What thing did {hero} have?", "What did {hero} bring?"),
                                             ("Which thing was with {hero}?",))),
    ("color", "It was {color}.", Phrases(("What color was the {thing}?", "Which color was the {thing}?", "The {thing} was what color?"),
                                         ("Of what color was the {thing}?",))),
)  # fmt: skip


def draw_cast(draw: Draw) -> Cast:
    hero, friend = draw.rng.sample(words.NAMES, 2)
    return Cast(
        hero, friend, draw.one(words.ANIMALS), draw.one(words.COLORS), draw.one(words.THINGS), draw.one(words.PLACES),
        draw.one(words.FOODS), draw.one(("sunny", "rainy", "windy", "cold", "warm", "cloudy", "bright", "snowy")),
        draw.one(("happy", "excited", "curious", "glad", "proud", "cheerful")),
    )  # fmt: skip


def slots_of(cast: Cast) -> dict[str, str]:
    slots = cast._asdict()
    slots["a_color_thing"] = with_article(f"{cast.color} {cast.thing}")
    slots["an_animal"] = with_article(cast.animal)
    for key in ("a_color_thing", "an_animal"):
        slots[key + "_up"] = slots[key][0].upper() + slots[key][1:]
    return slots


def tell(draw: Draw, cast: Cast, plot: str) -> str:
    lines = [draw.one(OPENINGS), draw.one(POSSESSIONS), draw.one(FEELINGS)]
    lines += [draw.one(choices) for choices in PLOTS[plot]]
    lines.append(draw.one(ENDINGS))
    return " ".join(lines).format(**slots_of(cast))


def story_plain(draw: Draw) -> Task:
    cast = draw_cast(draw)
    return Task("", tell(draw, cast, draw.one(PLOT_NAMES)), key="".join(cast), is_plain_text=True)


def story_chat(draw: Draw) -> Task:
    cast, plot = draw_cast(draw), draw.one(PLOT_NAMES)
    story = tell(draw, cast, plot)
    mentioned = [with_article(word) for word in (cast.animal, cast.thing) if f" {word}" in story]
    if plot in ("share", "build", "present"):
        mentioned.append(cast.friend)
    luck = draw.rng.random()
    if luck < 0.1:
        question = draw.one(ANY_ASKS)
    elif luck < 0.5:
        question = draw.phrase(SINGLE_ASKS).format(x=draw.one([cast.hero, *mentioned]))
    else:
        pair = [cast.hero, draw.one(mentioned)]
        if draw.chance(0.2):
            pair.reverse()
        question = draw.phrase(ASKS).format(x=pair[0], y=pair[1])
    return Task(draw.ask(question), story, f"A story about {cast.hero} and {mentioned[0]}.", "".join(cast))


def story_question(draw: Draw) -> Task:
    cast = draw_cast(draw)
    story, slots = tell(draw, cast, draw.one(PLOT_NAMES)), slots_of(cast)
    _, answer, phrases = draw.one(QUESTIONS)
    question = draw.phrase(phrases).format(**slots)
    user = draw.one(QUESTION_FORMS).format(story=story, question=question)
    return Task(user, answer.format(**slots), "The story says it.", "".join(cast))
