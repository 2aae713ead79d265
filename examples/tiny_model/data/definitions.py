"""A few hundred definitions in our own simple words."""

from examples.tiny_model.data.draws import Draw, Phrases
from examples.tiny_model.data.task import Task
from examples.tiny_model.data.words import with_article

NOUN_LINES = """
apple: a round fruit that grows on trees
pear: a sweet fruit that is narrow at the top
banana: a long yellow fruit with a thick skin
orange: a round fruit with a thick orange skin
grape: a small round fruit that grows in bunches
lemon: a yellow fruit with very sour juice
carrot: a long orange root that people eat
potato: a round root that people cook and eat
tomato: a soft red fruit used in salads
onion: a round vegetable that can make you cry
bread: a food baked from flour and water
cheese: a food made from milk
soup: a warm liquid food made in a pot
cake: a sweet food that is baked in an oven
honey: a sweet food made by bees
butter: a yellow food made from cream
salt: a white powder that gives taste to food
sugar: a sweet white powder
rice: a plant with small seeds that people eat
egg: a round thing laid by a bird
milk: a white drink that comes from cows
tea: a hot drink made from leaves
coffee: a hot brown drink made from roasted beans
water: a clear liquid that everybody needs to live
juice: the liquid that comes out of fruit
cat: a small animal with soft fur that catches mice
dog: an animal that lives with people and guards the house
horse: a large animal that people ride
cow: a large farm animal that gives milk
pig: a farm animal with a flat nose and a curly tail
sheep: a farm animal that gives wool
goat: a farm animal with horns and a beard
hen: a bird that lays eggs on a farm
duck: a bird that swims and says quack
goose: a large white bird with a long neck
bird: an animal with wings and feathers
fish: an animal that lives in water and swims
bee: a small insect that makes honey
ant: a tiny insect that lives in large groups
butterfly: an insect with large colorful wings
spider: a small animal with eight legs that makes webs
snake: a long animal without legs
frog: a small green animal that jumps and lives near water
turtle: a slow animal with a hard shell
mouse: a very small animal with a long tail
rabbit: an animal with long ears that likes carrots
fox: a wild animal with red fur and a thick tail
wolf: a wild animal that looks like a dog and lives in packs
bear: a large strong animal with thick fur
lion: a large wild cat with a loud roar
tiger: a large wild cat with black stripes
elephant: a very large gray animal with a long trunk
monkey: a clever animal that climbs trees
owl: a bird that hunts at night
eagle: a large bird that can see very far
penguin: a black and white bird that swims but cannot fly
whale: the largest animal in the sea
dolphin: a clever sea animal that breathes air
shark: a large fish with sharp teeth
squirrel: a small animal with a thick tail that collects nuts
deer: a wild animal that runs fast and eats grass
hedgehog: a small animal covered with spines
camel: a desert animal with one or two humps
giraffe: a tall animal with a very long neck
zebra: an animal like a horse with black and white stripes
kangaroo: an animal that jumps and carries its baby in a pouch
tree: a tall plant with a trunk and leaves
flower: the colorful part of a plant
grass: a green plant that covers the ground
leaf: a flat green part of a plant
root: the part of a plant that grows under the ground
seed: a small thing from which a plant grows
forest: a large place with many trees
garden: a piece of land where plants grow
river: a long stream of water that flows to the sea
lake: a large area of water with land around it
sea: a very large area of salt water
ocean: a huge area of salt water between lands
island: a piece of land with water all around it
beach: the sandy land next to the sea
mountain: a very high piece of land
hill: a small mountain
valley: the low land between mountains
desert: a dry place with a lot of sand
volcano: a mountain that can throw out hot rock and ash
cave: a large hole in a mountain or under the ground
stone: a hard piece of rock
sand: a powder of tiny stones
sun: the star that gives us light and heat
moon: the round body that moves around the earth
star: a bright point of light in the night sky
planet: a large round body that moves around a star
earth: the planet on which we live
sky: the space above us where we see clouds and stars
cloud: a white or gray mass of tiny drops in the sky
rain: water that falls from the clouds
snow: soft white ice that falls from the sky in winter
ice: water that is frozen and hard
wind: air that moves
storm: bad weather with strong wind and rain
rainbow: a band of colors in the sky after rain
thunder: the loud noise that follows lightning
fire: the light and heat of something that burns
smoke: the gray gas that comes from a fire
spring: the season between winter and summer
summer: the warmest season of the year
autumn: the season when the leaves fall
winter: the coldest season of the year
morning: the first part of the day
evening: the last part of the day
night: the dark part of the day
hour: a time of sixty minutes
minute: a time of sixty seconds
week: a time of seven days
month: one of the twelve parts of a year
year: a time of twelve months
house: a building where people live
door: a thing that opens and closes a room
window: an opening in a wall with glass in it
roof: the top of a building
wall: one of the sides of a room
kitchen: a room where people cook
bed: a piece of furniture for sleeping
chair: a piece of furniture for one person to sit on
table: a piece of furniture with a flat top and legs
lamp: a thing that gives light
clock: a machine that shows the time
mirror: a piece of glass in which you can see yourself
key: a small thing that opens a lock
box: a container with flat sides
bag: a soft container for carrying things
basket: a container made of thin pieces of wood
bottle: a container with a narrow neck for liquids
cup: a small container for drinking
plate: a flat round dish for food
spoon: a tool for eating soup
fork: a tool with points for eating
knife: a tool for cutting
pot: a deep round container for cooking
oven: a hot box for baking food
candle: a stick of wax that gives light when it burns
blanket: a warm cover for a bed
pillow: a soft thing to put your head on
soap: a thing used for washing
brush: a tool with hairs for cleaning or painting
hammer: a tool for hitting nails
saw: a tool for cutting wood
needle: a thin pointed tool for sewing
rope: a thick strong string
ladder: a thing with steps for climbing up
bridge: a road that goes over a river
road: a way on which cars drive
street: a road in a town
village: a small group of houses in the country
town: a place with many houses, smaller than a city
city: a very large town
country: a large area with its own people and government
map: a drawing that shows where places are
school: a place where children learn
library: a place with many books
hospital: a place where sick people get help
market: a place where people buy and sell things
shop: a place where you can buy things
farm: a place where food is grown and animals are kept
museum: a place where old and interesting things are shown
church: a building where people pray
park: an open place with grass and trees in a town
station: a place where trains stop
airport: a place where planes land and take off
harbor: a safe place for ships
car: a machine with four wheels that carries people
bus: a large car for many people
train: a row of wagons that runs on rails
bicycle: a vehicle with two wheels that you move with your feet
boat: a small vehicle that moves on water
ship: a large boat for the sea
plane: a machine with wings that flies
rocket: a machine that flies into space
wheel: a round thing that turns
engine: a machine that makes something move
computer: a machine that works with information
telephone: a machine for talking to people far away
camera: a machine that takes pictures
robot: a machine that can do work like a person
radio: a machine that plays sound from far away
book: a set of pages with words to read
letter: a message written on paper
word: a group of letters that means something
story: a telling of things that happened
song: a piece of music with words
music: sounds that are nice to listen to
piano: a large instrument with black and white keys
drum: an instrument that you hit
flute: an instrument that you blow
guitar: an instrument with six strings
picture: a drawing, painting or photo
pen: a tool for writing with ink
pencil: a tool for writing that can be rubbed out
paper: a thin sheet for writing
game: something that people play for fun
ball: a round thing used in games
doll: a toy that looks like a person
kite: a toy that flies in the wind
teacher: a person who helps others learn
doctor: a person who helps sick people
nurse: a person who takes care of sick people
farmer: a person who grows food and keeps animals
baker: a person who makes bread
cook: a person who makes food
pilot: a person who flies a plane
sailor: a person who works on a ship
singer: a person who sings
painter: a person who makes pictures
writer: a person who writes books
driver: a person who drives a car or a bus
builder: a person who builds houses
dentist: a doctor for the teeth
king: a man who rules a country
queen: a woman who rules a country
friend: a person you like and trust
family: a group of people such as parents and children
neighbor: a person who lives next to you
child: a young person
baby: a very young child
head: the top part of the body
eye: the part of the body you see with
ear: the part of the body you hear with
nose: the part of the face you smell with
mouth: the part of the face you eat and speak with
hand: the part of the body at the end of the arm
foot: the part of the body at the end of the leg
heart: the part of the body that moves the blood
hat: a thing you wear on your head
coat: a warm piece of clothing you wear outside
shoe: a thing you wear on your foot
ring: a small round piece of jewelry for a finger
money: coins and paper that you can buy things with
gift: a thing that you give to someone
dream: the pictures in your mind when you sleep
question: a sentence that asks for something
answer: what you say after a question
number: a word or sign that tells how many
secret: a thing that only a few people know
promise: words that say you will surely do something
"""
OTHER_LINES = """
brave: ready to face danger
kind: friendly and good to others
honest: always telling the truth
lazy: not wanting to work
clever: quick to learn and understand
angry: feeling that something is very wrong
happy: feeling good and glad
sad: feeling sorry or not happy
tired: needing rest or sleep
hungry: wanting to eat
thirsty: wanting to drink
curious: wanting to know more
proud: pleased with what you have done
shy: afraid to talk to other people
polite: having good manners
quiet: making little or no noise
loud: making a lot of noise
empty: with nothing inside
full: with no room for more
huge: very, very big
tiny: very, very small
ancient: very, very old
modern: of the present time
rare: not often seen
common: often seen or found
dangerous: able to hurt you
safe: free from danger
expensive: costing a lot of money
cheap: costing little money
to run: to move fast on your legs
to walk: to move on your feet, step by step
to swim: to move through water
to fly: to move through the air
to sleep: to rest with closed eyes
to laugh: to make sounds because something is funny
to cry: to have tears in your eyes
to whisper: to speak very quietly
to shout: to speak very loudly
to build: to make something from parts
to repair: to make something work again
to borrow: to take something and give it back later
to lend: to give something for a short time
to learn: to get to know something new
to teach: to help someone learn
to forget: to lose something from your mind
to remember: to keep something in your mind
to share: to give a part of something to others
to hide: to put something where nobody can see it
to explain: to make something easy to understand
to promise: to say that you will surely do something
"""
# Things that are named without an article.
MASS = frozenset(
    "bread cheese soup honey butter salt sugar rice milk tea coffee water juice grass sand rain snow ice wind smoke thunder soap music "
    "paper money spring summer autumn winter".split()
)
UNIQUE = frozenset("sun moon sky sea earth".split())

NOUN_QUESTIONS = Phrases(
    seen=(
        "What is {x}?", "What does the word {w} mean?", "What does {w} mean?", "Define {w}.", "Explain {w}.", "Tell me what {x} is.",
        "What's {x}?", "Do you know what {x} is?", "Can you explain what {x} is?", "Explain the word {w}.", "Meaning of {w}?",
        "Give a definition of {w}.", "What do you know about {x}?", "Describe {x}.", "I do not know the word {w}.", "Please define {w}.",
    ),
    unseen=("Could you tell me what {x} is?", "What is meant by {w}?", "In simple words, what is {x}?"),
)  # fmt: skip
OTHER_QUESTIONS = Phrases(
    seen=(
        "What does {w} mean?", "What does the word {w} mean?", "Define {w}.", "Explain {w}.", "Explain the word {w}.", "Meaning of {w}?",
        "Tell me what {w} means.", "What is the meaning of {w}?", "Can you explain {w}?", "Do you know what {w} means?", "Please define {w}.",
        "Give a definition of {w}.",
    ),
    unseen=("Could you tell me what {w} means?", "What is meant by {w}?"),
)  # fmt: skip


def parse(lines: str) -> tuple[tuple[str, str], ...]:
    pairs = [line.split(": ", 1) for line in lines.strip().splitlines()]
    return tuple((word, meaning) for word, meaning in pairs)


NOUNS, OTHERS = parse(NOUN_LINES), parse(OTHER_LINES)


def named(word: str) -> str:
    """A word as a sentence names it: "honey", "the sun", "an apple"."""
    if word in MASS:
        return word
    return f"the {word}" if word in UNIQUE else with_article(word)


def definition(draw: Draw) -> Task:
    if draw.chance(0.8):
        word, meaning = draw.one(NOUNS)
        subject = named(word)
        question = draw.phrase(NOUN_QUESTIONS).format(x=subject, w=word)
        answer = f"{subject[0].upper()}{subject[1:]} is {meaning}."
    else:
        word, meaning = draw.one(OTHERS)
        question = draw.phrase(OTHER_QUESTIONS).format(w=word)
        answer = f"{word[0].upper()}{word[1:]} means {meaning}."
    return Task(draw.ask(question), answer, "I know this word.")
