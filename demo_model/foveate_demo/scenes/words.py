# ruff: noqa: SIM905 - words are easier to read and to change without quotes around each
"""Fields of scenes, and generators of values for each field.

Words come from closed lists; digits, dates, times, prices and codes are drawn freely.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

PEOPLE = (
    "Alice Anna Ben Bruno Carl Clara Daniel David Emma Eric Eva Felix Frank George Grace Hannah "
    "Harry Henry Ivan Jack James Jane John Julia Karl Kate Laura Leo Linda Lucas Lucy Maria Mark "
    "Martin Mary Max Michael Nina Nora Oliver Oscar Paul Peter Robert Rose Sam Sara Simon Sofia "
    "Thomas Tom Victor Walter William"
).split()
CITIES = (
    "Amsterdam Athens Berlin Boston Cairo Chicago Delhi Dublin Geneva Hamburg Houston Istanbul "
    "Lisbon London Madrid Miami Milan Moscow Munich Oslo Paris Prague Rome Seattle Sydney Tokyo "
    "Toronto Vienna Warsaw Zurich"
).split()
COLOURS = "black blue brown gold green grey orange pink purple red silver white yellow".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MATERIALS = (
    "brass concrete copper cotton glass iron leather marble paper plastic silk steel wood wool"
).split()
GOODS = (
    "apples bread butter cheese chicken chocolate coffee eggs fish flour honey juice lemons milk "
    "oil onions oranges pasta pepper potatoes rice salad salt soup sugar tea tomatoes water wine"
).split()
PROFESSIONS = (
    "actor architect artist baker chef dentist doctor driver engineer farmer lawyer nurse painter "
    "pilot sailor singer student teacher waiter writer"
).split()
DEPARTMENTS = (
    "Chemistry Design Finance History Marketing Physics Research Sales Security Training".split()
)
COUNTRIES = (
    "Austria Belgium Brazil Canada China Denmark Egypt Finland France Germany Greece India Italy "
    "Japan Kenya Mexico Norway Peru Poland Portugal Spain Sweden Turkey"
).split()
STREETS = (
    "Bridge Castle Church Forest Garden High King Lake Main Market Mill North Park River South "
    "Station"
).split()
ANIMALS = (
    "bear bird cat cow dog duck fish fox goat horse lion mouse rabbit sheep snake tiger".split()
)
MUSIC = "bass cello drums flute guitar harp organ piano trumpet violin".split()
SPORTS = (
    "basketball boxing cricket cycling football golf hockey rowing rugby running skiing swimming "
    "tennis"
).split()

PICTURES = (
    "airplane anchor apple balloon bell bicycle bird boat book bus butterfly cake camera candle "
    "car cat chair clock cloud crown cup dog door ear eye fish flag flower guitar hammer hand "
    "hat heart helicopter house key ladder lamp leaf lightning lock moon mountain mushroom "
    "pencil phone piano pizza puzzle rain rocket scissors shield ship shirt shoe skull snake "
    "snow spider star sun sword tent tractor train tree truck trumpet umbrella watch wheel"
).split()


def among(words: list[str]) -> Callable[[Random], str]:
    """Return a generator of words from a list."""
    return lambda r: r.choice(words)


def number(low: int, high: int) -> Callable[[Random], str]:
    """Return a generator of integers from low to high."""
    return lambda r: str(r.randint(low, high))


def date(r: Random) -> str:
    """Draw a date such as "14 March", often with the year."""
    day = f"{r.randint(1, 28)} {r.choice(MONTHS)}"
    return f"{day} {r.randint(1950, 2029)}" if r.random() < 0.6 else day


def clock(r: Random) -> str:
    """Draw a time such as "14:35"."""
    return f"{r.randint(0, 23):02}:{r.randrange(0, 60, 5):02}"


def price(r: Random) -> str:
    """Draw a price such as "12.40"."""
    return f"{r.randint(1, 99)}.{r.randint(0, 99):02}"


def code(r: Random) -> str:
    """Draw a code such as "K402"."""
    return r.choice("ABCDEFGHKLMNPRSTVWXZ") + str(r.randint(10, 999))


def street(r: Random) -> str:
    """Draw an address such as "14 Bridge Street"."""
    return f"{r.randint(1, 99)} {r.choice(STREETS)} Street"


def phone(r: Random) -> str:
    """Draw a phone number such as "555 0142"."""
    return f"{r.randint(200, 999)} {r.randint(0, 9999):04}"


def measure(low: int, high: int, unit: str) -> Callable[[Random], str]:
    """Return a generator of measures such as "14 kg"."""
    return lambda r: f"{r.randint(low, high)} {unit}"


FIELDS: dict[str, Callable[[Random], str]] = {
    "Name": among(PEOPLE),
    "Manager": among(PEOPLE),
    "Customer": among(PEOPLE),
    "Author": among(PEOPLE),
    "Driver": among(PEOPLE),
    "City": among(CITIES),
    "Destination": among(CITIES),
    "Origin": among(CITIES),
    "Country": among(COUNTRIES),
    "Street": street,
    "Colour": among(COLOURS),
    "Date": date,
    "Due date": date,
    "Birthday": date,
    "Deadline": date,
    "Month": among(MONTHS),
    "Day": among(DAYS),
    "Time": clock,
    "Departure": clock,
    "Arrival": clock,
    "Room": number(100, 999),
    "Floor": number(1, 40),
    "Age": number(18, 90),
    "Quantity": number(2, 99),
    "Order": number(1000, 9999),
    "Table": number(1, 60),
    "Gate": code,
    "Seat": code,
    "Code": code,
    "Price": price,
    "Total": price,
    "Tax": price,
    "Phone": phone,
    "Weight": measure(2, 99, "kg"),
    "Length": measure(2, 99, "cm"),
    "Speed": measure(20, 250, "km"),
    "Temperature": measure(2, 40, "degrees"),
    "Material": among(MATERIALS),
    "Profession": among(PROFESSIONS),
    "Department": among(DEPARTMENTS),
    "Product": among(GOODS),
    "Animal": among(ANIMALS),
    "Instrument": among(MUSIC),
    "Sport": among(SPORTS),
}

# Lines such as "Bruno's room: 214", for images that all have the same fields.
OWNED = (
    "Age",
    "Birthday",
    "City",
    "Code",
    "Colour",
    "Department",
    "Floor",
    "Instrument",
    "Order",
    "Phone",
    "Profession",
    "Room",
    "Seat",
    "Sport",
    "Table",
)

TITLES = (
    "Order form",
    "Invoice",
    "Receipt",
    "Ticket",
    "Travel plan",
    "Visitor card",
    "Delivery note",
    "Library card",
    "Staff record",
    "Time table",
    "Price list",
    "Booking",
    "Report",
    "Inventory",
    "Welcome",
    "Notice",
)
