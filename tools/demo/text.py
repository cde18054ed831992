"""Varied English sentences for speech synthesis, and which split each one belongs to.

Sentences come from templates over word lists; a sentence is assigned to train, validation or test by a hash
of its own text, so the three sets never share one however they are drawn.
"""

import hashlib
import random

SUBJECTS = """the old fisherman|my younger sister|a quiet engineer|the mayor of the town|our neighbour|the baker|
every visitor|the weather bureau|that small orchestra|the chief architect|a group of children|the night nurse|
two farmers|the museum guide|her brother Thomas|this tall woman|the pilot|an honest lawyer|the choir|Bob|Amelia|
Professor Whitfield|the whole village|a passing cyclist|the judge|your cousin|the committee|Peggy|Mister Boyd|
the zookeeper|a wise physician|the youngest player|Joe|the shopkeeper|my father|the goalkeeper""".replace("\n", "").split("|")

VERBS = """bought|followed|described|moved|borrowed|painted|repaired|measured|forgot|opened|admired|carried|
watched|polished|chose|found|brought back|looked for|paid for|gave away|thought about|pushed|pulled|built|washed|
examined|remembered|voted for|wrapped|shook|photographed|ignored|improved|argued about|wrote about""".replace("\n", "").split("|")

ADJECTIVES = """blue|narrow|beautiful|heavy|wooden|purple|famous|broken|enormous|yellow|polite|smooth|ancient|
foggy|round|cheap|thirsty|golden|poor|bright|hollow|rough|curious|maple|thick|empty|awful|beige|juicy|savage""".replace("\n", "").split("|")

NOUNS = """boat|piano|window|bridge|umbrella|garden|oven|pair of boots|vase|map|bowl of soup|photograph|valley|
pie|bicycle|telescope|envelope|cow|book|puppet|church|jewel|weather report|boulder|computer|moon|sofa|bath|
beach|feather|cup of coffee|leather jacket|shoe|measure of hope|zebra|bubble|cheese|pool|tower|violin|
mushroom|treasure|path|bird|voyage|loaf of bread|farm|wolf|rope|knife""".replace("\n", "").split("|")

PLACES = """near the harbour|by the open door|under a wide blue sky|above the bakery|in the middle of the room|
before breakfast|on Wednesday morning|after the game|without a word|along the muddy road|at half past four|
outside the theatre|in a hurry|during the storm|for the first time|beside the warm fire|every other Thursday|
across the frozen lake|between two meetings|with both hands|for fifteen pounds|in the month of February|
behind the post office|upon the roof|through the fog|throughout the afternoon""".replace("\n", "").split("|")

OPENERS = """Good evening|However|To be honest|Meanwhile|Believe it or not|As far as we know|Oh yes|Well|
By the way|Above all|Of course|In other words|Fortunately|Before you go|Now|Perhaps|Look|Once again""".replace("\n", "").split("|")

CLAUSES = """everybody was pleased|nobody knew why|the room became very quiet|we hope it will help|
that was more than enough|the rain would not stop|he always wore a woollen hat|you may have heard about it|
both of them laughed|the show must go on|it seemed a little odd|the answer was obvious|there was no hurry at all|
the bees went home|she whistled a tune|I would rather wait|they gave up at once|prices rose by forty percent|
the moon looked huge|we moved slowly|few people believe it|the water was too cool|the bus arrived at five o'clock|
power came back before midnight|the boys threw pebbles|my mouth was full of apple|five million people watched""".replace("\n", "").split("|")

NUMBERS = "two|three|four|five|seven|eight|eleven|twelve|fifteen|forty|sixty five|eighty|ninety nine|two hundred".split("|")

FIXED = """How much wood would a woodchuck chuck?|Please put the blue bowl above the oven.|
We always wish you a warm welcome, wherever you are.|The boy was there when the sun rose.|
Five wives weave loose blue gloves.|Why do you chew your food so slowly?|Bring me both maps, please.|
Thank you very much for watching, and good night.|She sells smooth shells by the sea shore.|
The huge house on the hill was painted pale yellow.|Maybe my mother may move to Miami.|
I'm afraid we have to pause for a moment.|Our top story: the bridge opens tomorrow.|
A large ox thought about food all afternoon.|You owe me a few new shoes.|Papa bought a baby monkey a purple balloon.|
Choose the shortest road, then turn left at the church.|The wolf howled, and the owl looked away.|
Here is the news at nine.|Would you believe the price of oil?|That judge is a generous gentleman.""".replace("\n", "").split("|")


def _phrase(rng: random.Random) -> str:
    adjective = rng.choice(ADJECTIVES) + " " if rng.random() < 0.6 else ""
    return f"{rng.choice(['the', 'a very', 'their', 'my', 'that', 'one'])} {adjective}{rng.choice(NOUNS)}"


def _sentence(rng: random.Random) -> str:
    kind = rng.random()
    core = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {_phrase(rng)} {rng.choice(PLACES)}"
    if kind < 0.08:
        return rng.choice(FIXED)
    if kind < 0.35:
        text = f"{core}."
    elif kind < 0.55:
        text = f"{rng.choice(OPENERS)}, {core}."
    elif kind < 0.75:
        text = f"{core}, {rng.choice(['and', 'but', 'so', 'because', 'although'])} {rng.choice(CLAUSES)}."
    elif kind < 0.85:
        text = f"{rng.choice(CLAUSES)}; {rng.choice(CLAUSES)}, {rng.choice(CLAUSES)}."
    elif kind < 0.93:
        text = f"there were {rng.choice(NUMBERS)} of them {rng.choice(PLACES)}, not {rng.choice(NUMBERS)}."
    else:
        text = f"did {rng.choice(SUBJECTS)} really need {_phrase(rng)}, or was it {_phrase(rng)}?"
    return text[0].upper() + text[1:]


def split_of(sentence: str) -> str:
    """train (80 %), validation (10 %) or test (10 %), decided by the sentence alone."""
    digit = hashlib.sha256(sentence.encode()).digest()[0] % 10
    return {8: "validation", 9: "test"}.get(digit, "train")


def sentences(split: str, seed: int):
    """Yield endless different sentences of one split; FIXED ones may return."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while True:
        text = _sentence(rng)
        if split_of(text) == split and (text not in seen or text in FIXED):
            seen.add(text)
            yield text
