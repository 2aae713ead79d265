"""Vocabulary lists. Plain words, one list per kind; order is part of the data (draws are seeded)."""

NAMES = (
    "Anna Ben Carl Dana Emma Finn Gina Hugo Iris Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tara Vera Alice Bob Clara David Eva "
    "Frank Grace Henry Ivy James Karen Liam Maria Nina Oscar Peter Quinn Rita Simon Tom Ursula Victor Wendy Xavier Yara Zoe Adam "
    "Bella Chris Diana Elias Fiona George Hannah Ian Julia Kevin Laura Max Nora Lucy Lily Otto Ruth Sara Theo Ella Felix Ada Ravi "
    "Mei Omar Lena Jonas Amir Chloe Daniel Sofia Lucas Ruby"
).split()
CITIES = (
    "Oslo Paris Rome Lima Cairo Tokyo Delhi Madrid Berlin Boston Dublin Prague Vienna Athens Lisbon Seoul London Warsaw Budapest "
    "Ottawa Nairobi Sydney Chicago Denver Miami Geneva Zurich Munich Hamburg Milan Naples Porto Bergen Krakow Riga Tallinn "
    "Helsinki Manila Hanoi Bangkok Toronto Havana Seattle Austin Leeds Bristol Lyon Turin Basel Kyoto"
).split()
COLORS = "red blue green yellow white black brown pink orange purple gray silver golden".split()
ANIMALS = (
    "cat dog bird fox bear frog mouse rabbit horse duck goat sheep lion tiger wolf owl turtle snake pig cow hen fish bee ant "
    "squirrel deer monkey elephant hedgehog penguin"
).split()
THINGS = (
    "ball hat box book key cup kite boat bell lamp chair table spoon plate shoe coat bag ring clock drum flute pen map stone rope "
    "basket candle bottle blanket mirror"
).split()
FOODS = (
    "bread soup apples cheese cake rice honey berries pears beans nuts eggs pasta salad cookies grapes carrots milk tea juice "
    "pancakes plums tomatoes corn"
).split()
JOBS = (
    "teacher baker doctor farmer pilot singer writer nurse driver painter cook lawyer sailor builder dentist actor gardener engineer "
    "artist plumber"
).split()
MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
PLACES = "park forest garden beach river hill farm lake market school meadow village library".split()
VERBS = (
    "get find list create delete update send check open close start stop book order cancel search play set add remove show convert "
    "count track share move copy print read save"
).split()
NOUNS = (
    "weather alarm message event song ticket flight hotel table order invoice report user file folder note task reminder route price "
    "stock recipe photo video email contact meeting room device light door timer budget payment review product package account score"
).split()

# Invented words are built from these, so that copying can never lean on a list.
ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl st tr sh th".split()
VOWELS = "a e i o u ai ea oo".split()
CODAS = ["", "n", "r", "s", "l", "k", "m"]


def with_article(noun_phrase: str) -> str:
    """ "a" or "an" in front of a phrase, by its first letter."""
    return ("an " if noun_phrase[0] in "aeiouAEIOU" else "a ") + noun_phrase
