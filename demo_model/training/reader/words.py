"""Random names, addresses, dates, amounts and goods of documents, as in many countries."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

_SYLLABLES = (  # noqa: SIM905
    "ba be bin bo bra cha chen chi cor da del dou el en fa fer fu ga gar go gu ha hai han ho "
    "hua in ja jin ka kar ken kim ko ku la lan lee len li lim lo ma mar mei min mo na ne ni no "
    "ong pa pen per po qi ra ran ri ro sa san seng shi si sol su ta tan tek ti to tong tra tu "
    "ul va ven vi wa wei wen wo xin ya yi yong yu za zen zi"
).split()
_NOUNS = (  # noqa: SIM905
    "Garden Star Golden Silver Royal Ocean River Sun Moon Lucky Happy Prime Grand Central North "
    "South East West Green Blue Red City Metro Union Pacific Global Family Classic Modern "
    "Express Smart Fresh Best Super Mega Mini Old New First United Eagle Tiger Lion Lotus "
    "Orchid Cedar Maple Oak Stone Bridge Harbour Castle Crown Diamond Pearl Crystal Summit "
    "Valley Island Palm"
).split()
_TRADES = (  # noqa: SIM905
    "Restaurant|Cafe|Bakery|Supermarket|Mini Market|Hardware|Trading|Enterprise|Stationery|"
    "Books|Pharmacy|Clinic|Motors|Auto Parts|Electrical|Furniture|Fashion|Hotel|Petrol Station|"
    "Seafood|Noodle House|Kitchen|Food Court|Marketing|Services|Holdings|Industries|Retail|"
    "Store|Stores|Department Store|Optical|Printing|Florist|Gifts|Toys|Sports|Bistro|Grill|"
    "Pizza|Burger|Tea House|Coffee|Catering|Ventures|Resources|Engineering|Paints|Tools|"
    "Decoration|Home Centre|Pet Shop"
).split("|")
_FORMS = {
    "my": ("Sdn Bhd", "Sdn. Bhd.", "(M) Sdn Bhd", "SDN.BHD.", "Enterprise", "Trading", "Bhd", ""),
    "sg": ("Pte Ltd", "Pte. Ltd.", "LLP", ""),
    "us": ("Inc.", "LLC", "Co.", "Corp.", "# {n}", ""),
    "uk": ("Ltd", "Limited", "& Sons", "PLC", ""),
    "in": ("Pvt Ltd", "& Co", "Traders", ""),
    "eu": ("GmbH", "S.A.", "B.V.", "AG", ""),
}
_GOODS = (  # noqa: SIM905
    "Milk|Bread|Rice|Eggs|Butter|Cheese|Chicken|Beef|Fish Ball|Prawn|Noodle Soup|Fried Rice|"
    "Iced Tea|Teh Tarik|Coffee|Latte|Mineral Water|Orange Juice|Cola|Sugar|Salt|Flour|"
    "Cooking Oil|Onion|Garlic|Tomato|Potato|Apple|Banana|Grape|Biscuit|Chocolate|Candy|"
    "Ice Cream|Tissue|Soap|Shampoo|Toothpaste|Detergent|Battery AA|Light Bulb|Cable 3M|Plug|"
    "Screw 2in|Nail|Hammer|Paint White|Brush|Tape|Glue|Pen Blue|Pencil|Notebook A4|Paper A4|"
    "Folder|Envelope|Stapler|Marker|Eraser|Ruler|T-Shirt|Socks|Cap|Towel|Plate|Cup|Spoon|Bowl|"
    "Fork|Knife|Bag|Box|Basket|Mat|Pillow|Lamp|Fan|Hose 10M|Pipe PVC|Petrol 95|Diesel|Parking|"
    "Delivery|Service|Repair|Labour|Set Lunch A|Set B|Combo 3|Salad|Soup|Steak"
).split("|")
_STREETS = {
    "my": (
        "Jalan {w}",
        "Jalan {w} {n}",
        "Jln {w} {n}/{m}",
        "Lorong {w} {n}",
        "Persiaran {w}",
        "Jalan {w} {v} {n}",
        "Jalan {w} {v} U{m}/{k}",
        "Jalan SS{m}/{k}",
        "Jalan {m}/{k}A",
    ),
    "sg": ("{w} Road", "{w} Avenue {n}", "{w} Street {m}", "Bukit {w} Lane"),
    "us": ("{w} St", "{w} Ave", "{w} Blvd", "N {w} Dr", "Highway {n}"),
    "uk": ("{w} Road", "High Street", "{w} Lane", "{w} Close"),
    "in": ("{w} Nagar", "{w} Road", "{n}th Cross, {w}", "M G Road"),
    "eu": ("{w}str. {n}", "Rue {w}", "Via {w} {n}", "{w}weg {n}"),
}
_AREAS = {
    "my": (
        "Taman {w}",
        "Taman {w} {v}",
        "Bandar {w}",
        "Bandar Baru {w} {v}",
        "Kampung {w}",
        "Tmn {w}",
        "Kawasan Perindustrian {w}",
        "Seksyen {m}",
        "Seksyen U{m}",
        "Pusat Bandar {w}",
    ),
    "sg": ("{w} Industrial Park", "{w} Mall", "{w} Estate"),
    "us": ("Suite {n}", "{w} Plaza", "Unit {n}"),
    "uk": ("{w} Estate", "{w} Park"),
    "in": ("{w} Colony", "Near {w} Temple", "{w} Layout"),
    "eu": ("{w} Zentrum", "Zone {w}"),
}
_TOWNS = {
    "my": [
        "{z} {w} {v}",
        "{z} {w}, {t}",
        "{z}, {w}, {t}.",
        "{z} {w} {v}, {t}",
        "{z} {w} {v}, {t} {v}",
        "{z} {w} {t} Darul {v}",
        "{z} {w}, {t} Darul {v}, Malaysia",
        "{z} {w} {v}, {t}, Malaysia.",
    ],
    "sg": ["Singapore {z6}", "S({z6})", "Singapore {z6}."],
    "us": ["{w}, {s} {z}", "{w} {s} {z}", "{w}, {s}, {z}"],
    "uk": ["{w} {p}", "{w}, {p}"],
    "in": ["{w} - {z6}", "{w} {z6}, {t}"],
    "eu": ["{z} {w}", "D-{z} {w}"],
}
_NUMBERS = (
    "{n}",
    "No. {n}",
    "No {n}",
    "NO.{n}",
    "Lot {n}",
    "{n}-{m}",
    "{n}, {m} & {k}",
    "{n}A",
    "{n} & {m}A",
    "No.{n} & {k}",
    "G-{n}",
    "B-{m}",
)


def word(r: Random) -> str:
    """Return a made-up word, so that no name can be learned by heart."""
    return "".join(r.choices(_SYLLABLES, k=r.choice((2, 2, 2, 3)))).capitalize()


def any_word(r: Random) -> str:
    """Return a made-up word or a common one."""
    return r.choice(_NOUNS) if r.random() < 0.4 else word(r)


class Place(NamedTuple):
    """Country of a document: its code, currency and name of its tax."""

    code: str
    currency: str
    tax: str


PLACES = (  # one that stands twice is drawn twice as often
    Place("my", "RM", "GST"),
    Place("my", "RM", "GST"),
    Place("my", "RM", "SST"),
    Place("my", "RM", "Service Tax"),
    Place("sg", "$", "GST"),
    Place("us", "$", "Tax"),
    Place("uk", "GBP", "VAT"),
    Place("in", "Rs", "CGST"),
    Place("eu", "EUR", "VAT"),
)


def company(r: Random, place: Place) -> str:
    """Return a company's name."""
    names = [any_word(r) for _ in range(r.choice((1, 1, 2, 2, 3)))]
    if r.random() < 0.15:
        names[0] = " ".join(r.choices("ABCDEFGHJKLMNPRSTVWY", k=r.choice((2, 3))))
        names[0] = r.choice((names[0], names[0].replace(" ", "."), names[0].replace(" ", "")))
    if r.random() < 0.7:
        names.append(r.choice(_TRADES))
    if r.random() < 0.1:
        names.append(f"({word(r)})")
    form = r.choice(_FORMS[place.code]).format(n=r.randint(1, 9999))
    return " ".join([*names, form]).strip()


def address(r: Random, place: Place) -> list[str]:
    """Return the parts of an address, each of which may stand on a line of its own."""
    values = {
        "n": r.randint(1, 320), "m": r.randint(1, 60), "k": r.randint(61, 99),
        "z": f"{r.randint(10000, 98999)}", "z6": f"{r.randint(100000, 829999)}",
        "s": r.choice(("CA", "TX", "NY", "FL", "OH", "WA", "IL", "PA", "GA", "NC")),
        "p": f"{r.choice('ABCEGHKLMNRSTW')}{r.choice('ABELNRS')}{r.randint(1, 20)} "
        f"{r.randint(1, 9)}{r.choice('ABDEHJLNR')}{r.choice('ABDEFGHJLNPQRSTUWXYZ')}",
    }  # fmt: skip

    def fill(pattern: str) -> str:
        return pattern.format(w=any_word(r), v=word(r), t=any_word(r), **values)

    number = fill(r.choice(_NUMBERS))
    street = fill(r.choice(_STREETS[place.code]))
    comma = ", " if r.random() < 0.6 else " " if r.random() < 0.8 else ","
    parts = [f"{number}{comma}{street}"]
    if r.random() < 0.15:
        parts.insert(0, r.choice(("Ground Floor", "1st Floor", "Lot F-12, Level 2", "Block B")))
    if r.random() < 0.7:
        parts.append(fill(r.choice(_AREAS[place.code])))
    parts.append(fill(r.choice(_TOWNS[place.code])))
    if r.random() < 0.25:
        parts.append(any_word(r) + (" " + word(r) if r.random() < 0.3 else ""))
    return parts


_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905
_LONG = (  # noqa: SIM905
    "January February March April May June July August September October November December"
).split()
_DATES: tuple[str, ...] = (
    "{d:02}/{m:02}/{y}", "{d:02}/{m:02}/{y}", "{d}/{m}/{y}", "{d:02}-{m:02}-{y}",
    "{d:02}/{m:02}/{s:02}", "{d:02}-{m:02}-{s:02}", "{d:02}.{m:02}.{y}", "{y}-{m:02}-{d:02}",
    "{d:02} {b} {y}", "{d:02}-{b}-{y}", "{d} {l} {y}", "{l} {d}, {y}", "{b} {d}, {y}",
    "{m}/{d}/{y}", "{d:02} {b} {s:02}", "{y}/{m:02}/{d:02}", "{d:02}{b}{y}", "{d:02}/{b}/{y}",
)  # fmt: skip


def date(r: Random) -> Callable[[], str]:
    """Return a source of dates that are all written in one way."""
    pattern = r.choice(_DATES)
    capitals = r.random() < 0.4

    def draw() -> str:
        y, m = r.randint(2009, 2027), r.randint(1, 12)
        text = pattern.format(
            d=r.randint(1, 28), m=m, y=y, s=y % 100, b=_MONTHS[m - 1], l=_LONG[m - 1]
        )
        return text.upper() if capitals else text

    return draw


def time(r: Random) -> str:
    """Return a time of day."""
    h, m, s = r.randint(0, 23), r.randint(0, 59), r.randint(0, 59)
    return r.choice(
        (f"{h:02}:{m:02}", f"{h:02}:{m:02}:{s:02}", f"{h % 12 + 1}:{m:02} {r.choice('AP')}M",
         f"{h % 12 + 1}:{m:02}:{s:02} {r.choice('AP')}M", f"{h:02}{m:02}h")
    )  # fmt: skip


def money(cents: int, grouped: bool = True) -> str:
    """Return an amount with two decimals, negative if below zero."""
    text = f"{abs(cents) / 100:,.2f}" if grouped else f"{abs(cents) / 100:.2f}"
    return f"-{text}" if cents < 0 else text


def goods(r: Random) -> str:
    """Return the name of an article."""
    name = r.choice(_GOODS)
    if r.random() < 0.4:
        name = f"{any_word(r)} {name}"
    if r.random() < 0.25:
        name = f"{name} {r.choice(('500G', '1KG', '2L', '350ML', '12PCS', '(L)', 'XL', '10CM'))}"
    return name


def code(r: Random) -> str:
    """Return a number as receipts, bills and articles have them."""
    digits = "".join(r.choices("0123456789", k=r.randint(3, 12)))
    letters = "".join(r.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=r.randint(1, 3)))
    return r.choice((digits, letters + digits, f"{letters}-{digits}", f"{digits[:4]}-{letters}"))


def phone(r: Random) -> str:
    """Return a telephone number."""
    a, b = r.randint(2, 99), r.randint(1000000, 99999999)
    return r.choice((f"0{a}-{b}", f"+{a} {b}", f"0{a} {b}", f"({a}) {b // 10000}-{b % 10000:04}"))


def person(r: Random) -> str:
    """Return a person's name."""
    return " ".join(word(r) for _ in range(r.choice((1, 2, 2, 3))))
