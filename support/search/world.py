"""Generate the world of the task qa, in which people work for companies in cities: each
question takes two searches."""
import random

from tasks import NAMES, digest, split_of

SURNAMES = ("Adler Berg Blum Brandt Carver Dahl Ebert Falk Fischer Frost Graf Hahn Hale "
            "Hart Holm Jansen Keller Koch Lang Lind Lorenz Marsh Moser Nagel Olsen Pohl "
            "Quist Rask Reed Roth Sander Stone Strand Thorn Vance Vogel Wagner Weber "
            "Winter Wolf").split()
BRANDS = ("Amber Arctic Bright Cedar Copper Coral Crystal Eagle Falcon Golden Granite "
          "Harbor Indigo Iron Jade Lotus Lunar Maple Noble Ocean Onyx Orchid Pearl Polar "
          "Prime Rapid River Royal Ruby Sierra Silver Solar Star Summit Tiger Velvet "
          "Violet Willow Zenith Zephyr").split()
FIRMS = ("Bakery Bank Books Cargo Clinic Designs Energy Farms Films Foods Games Glass "
         "Hotels Labs Media Metals Motors Optics Paper Tools").split()
CITIES = ("Accra Athens Berlin Bern Bogota Boston Cairo Dakar Delhi Dublin Geneva Hanoi "
          "Havana Kyoto Lagos Lima Lisbon London Lyon Madrid Milan Nairobi Naples Oslo "
          "Paris Porto Prague Quito Riga Rome Seoul Sofia Sydney Tokyo Tunis Turin Vienna "
          "Vilnius Warsaw Zurich").split()


def names_of(split, first_words, second_words):
    """Return the pairs of words that belong to the split for every seed, by their hash."""
    names = [f"{first} {second}" for first in first_words for second in second_words]
    return [name for name in names if split_of(digest(name)) == split]


def make_world(split, count, seed):
    """Make up to `count` rows (question, golds, passages, solution, shortcut) of a split:
    2,040 people work for 800 companies in 40 cities.

    A question names a person and asks for the city of their company, which takes two
    searches; the shortcut searches once and guesses. People work only for companies of
    their split. The seed determines who works where, and each company's city.
    """
    rng = random.Random(f"{seed} {split}")
    people = names_of(split, NAMES, SURNAMES)
    companies = names_of(split, BRANDS, FIRMS)
    rng.shuffle(people)
    rng.shuffle(companies)
    rows = []
    for i, company in enumerate(companies):
        city = rng.choice(CITIES)
        staff = people[i::len(companies)]
        passages = [f"{company} is based in {city}"]
        passages += [f"{person} works for {company}" for person in staff]
        for person in staff:
            first = f"<search> {person} </search>"
            rows.append((
                f"Where is the company of {person} based ?", [city], passages,
                f"{first} <search> {company} </search> <answer> {city} </answer>",
                f"{first} <answer> {rng.choice(CITIES)} </answer>"))
    return rng.sample(rows, min(count, len(rows)))
