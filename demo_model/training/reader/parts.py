"""Parts of documents: heads, facts, goods and sums, with the questions that they answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import NamedTuple

from PIL import Image

from foveate_demo.scenes.drawing import font
from training.reader import words
from training.reader.paper import Fonts, Item, Paper, Style


class Document(NamedTuple):
    """An image of a page, the texts on it, and (question, answer) pairs."""

    image: Image.Image
    items: list[Item]
    questions: list[tuple[str, str]]


ASKED = {
    "company": (
        "What is the company?",
        "Which company issued this?",
        "What is the company's name?",
        "Who is the seller?",
        "What is the name of the shop?",
    ),
    "date": ("What is the date?", "When was this issued?", "What is the date of this document?"),
    "total": (
        "What is the total?",
        "What is the total amount?",
        "How much is to be paid?",
        "What is the total to pay?",
    ),
    "address": ("What is the address?", "What is the company's address?", "Where is the company?"),
    "time": ("What is the time?", "At what time was it printed?"),
    "phone": ("What is the phone number?", "What is the telephone number?"),
    "number": ("What is the number of this document?", "What is the document number?"),
    "cash": ("How much was given in cash?", "How much cash was paid?"),
    "change": ("What is the change?", "How much change was given?"),
    "tax": ("What is the tax?", "How much tax is included?"),
    "subtotal": ("What is the total before tax?", "What is the subtotal?"),
    "due": ("When is it due?", "What is the due date?"),
    "customer": ("Who is the customer?", "To whom is it addressed?"),
}
"""Questions about fields that every document may have, in several wordings."""


def new_paper(r: Random, fonts: Fonts, wide: bool = False) -> Paper:
    """Return an empty page with a style of its own."""
    body = r.choice(fonts)
    size = r.randint(14, 26)
    columns = r.randint(48, 75) if wide else r.randint(28, 46)
    style = Style(
        body=body,
        head=r.choice((body, r.choice(fonts))),
        size=size,
        gap=r.uniform(0.1, 0.7),
        capitals=r.random() < 0.45,
        ink=r.randint(0, 110),
    )
    return Paper(r, style, int(columns * font(body, size).getlength("n0e") / 3))


def finished(paper: Paper, answers: dict[str, str], more: list[tuple[str, str]]) -> Document:
    """Return the document: a question about each field, ``more``, and some about its lines."""
    r = paper.r
    image, items = paper.scanned()
    asked = [(r.choice(ASKED[name]), answer) for name, answer in answers.items() if answer]
    r.shuffle(more)
    return Document(image, items, [*asked, *more[:4], *_lines(r, items)])


def _lines(r: Random, items: list[Item]) -> list[tuple[str, str]]:
    """Return questions about what stands where: copies of texts, and neighbours in a row."""
    texts = [item.text for item in items]
    found = []
    once = [text for text in texts if len(text) > 7 and texts.count(text) == 1]
    for text in r.sample(once, min(2, len(once))):
        begin = text[: r.randint(3, len(text) - 3)].strip()
        if sum(begin in other for other in texts) == 1:
            found.append((f"Copy the text that begins with '{begin}'.", text))
    if items:
        found.append(("What is the first line?", items[0].text))
        last = max(items, key=lambda item: (item.box[1], -item.box[0]))
        first_of_last = [i for i in items if abs(i.box[1] - last.box[1]) < 4]
        found.append(("What is the last line?", " ".join(i.text for i in first_of_last)))
    for a, b in pairwise(items):
        beside = abs(a.box[1] - b.box[1]) < 6 and a.box[2] < b.box[0]
        if beside and texts.count(a.text) == 1 and r.random() < 0.3 and len(a.text) > 2:
            found.append((f"What is next to '{a.text.rstrip(' :')}'?", b.text))
    return r.sample(found, min(4, len(found)))


def cased(paper: Paper, text: str) -> str:
    """Return a text in capitals, if the document is."""
    return text.upper() if paper.style.capitals else text


def header(paper: Paper, place: words.Place, align: str) -> dict[str, str]:
    """Write a company, its number, address and telephone; return the answers."""
    r, size = paper.r, paper.style.size
    big = int(size * r.choice((1.0, 1.0, 1.15, 1.4)))
    loud = r.random() < 0.5
    name = words.company(r, place)
    name = name.upper() if loud or paper.style.capitals else name
    if r.random() < 0.25:  # what stands above the company: a logo, a slogan, a person, a title
        titles = ("TAX INVOICE", "SIMPLIFIED TAX INVOICE", "Welcome to")
        above = r.choice((words.word(r), words.person(r), words.goods(r), *titles))
        paper.line(
            above.lower() if r.random() < 0.3 else above, r.choice(("left", align)), head=True
        )
    parts = name.split()
    inner = paper.width - 2 * paper.margin
    number = f"{r.randint(10000, 1999999)}{r.choice('-- ')}{r.choice('AKMTVWX')}"
    numbered = r.random() < 0.25 and paper.wide(f"{name} ({number})", size, True) < inner
    if numbered:
        paper.line(f"{name} ({number})", align, size, head=True)
    elif len(parts) > 2 and (paper.wide(name, big, True) > inner or r.random() < 0.25):
        cut = r.randint(1, len(parts) - 1)
        for half in (parts[:cut], parts[cut:]):
            paper.line(" ".join(half), align, big, head=True)
    else:
        paper.line(name, align, big, head=True)
    if not numbered and r.random() < 0.5:
        paper.line(
            r.choice((f"({number})", number, f"(Co. Reg. No: {number})", f"Reg {number}")), align
        )
    lines = words.address(r, place)
    lines = [cased(paper, line) for line in lines]
    comma = r.choice((",", ",", ""))
    lines = [line + comma for line in lines[:-1]] + [lines[-1] + r.choice(("", ".", ""))]
    written: list[str] = []
    for line in lines:  # short parts share a line
        joined = f"{written[-1]} {line}" if written else line
        if written and len(joined) < 30 and r.random() < 0.6:
            written[-1] = joined
        else:
            written.append(line)
    for line in written:
        paper.line(line, align)
    answers = {"company": name, "address": " ".join(written)}
    if r.random() < 0.65:
        number = words.phone(r)
        answers["phone"] = number
        label = r.choice(("Tel: ", "TEL:", "Tel No : ", "Phone: ", "T: ", "Tel ", "H/P: "))
        fax = f" Fax: {words.phone(r)}" if r.random() < 0.3 else ""
        paper.line(f"{label}{number}{fax}", align)
    if r.random() < 0.4:
        paper.line(
            f"{place.tax} {r.choice(('ID', 'No', 'Reg No'))}: {r.randint(10**8, 10**12)}", align
        )
    if r.random() < 0.15:
        paper.line(r.choice(("www.{}.com", "{}@mail.com")).format(words.word(r).lower()), align)
    return answers


def pair(paper: Paper, label: str, value: str, at: float) -> None:
    """Write a label and its value: in one text, or the value further right."""
    r = paper.r
    kind = r.random()
    if kind < 0.45:
        paper.row([(0.0, f"{label}{r.choice((': ', ' : ', ':'))}{value}", "left")])
    elif kind < 0.8:
        paper.row([(0.0, label, "left"), (at, f": {value}" if r.random() < 0.7 else value, "left")])
    else:
        paper.row([(0.0, f"{label}:", "left"), (1.0, value, "right")])


def facts(
    paper: Paper, dated: Callable[[], str], space: int
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Write date, number and other facts in random order; return answers and further questions."""
    r = paper.r
    day, now, number = dated(), words.time(r), words.code(r)
    answers = {"date": day}
    more: list[tuple[str, str]] = []
    at = r.uniform(0.25, 0.45)
    with_time = r.random() < 0.5
    stamp = r.choice((f"{day} {now}", f"{now} {day}", f"{day}  {now}")) if with_time else day
    labels = ("Date", "DATE", "Invoice Date", "Date/Time", "Bill Date", "Date Issued", "Dt", "")
    label = r.choice(labels)
    rows: list[tuple[str, str]] = [(label, stamp)]
    if with_time:
        answers["time"] = now
    elif r.random() < 0.4:
        rows.append((r.choice(("Time", "TIME")), now))
        answers["time"] = now
    if r.random() < 0.7:
        rows.append(
            (r.choice(("Invoice No", "Receipt No", "Bill No.", "Doc No", "Receipt #")), number)
        )
        answers["number"] = number
    others = [
        ("Cashier", words.person(r)),
        ("Table", str(r.randint(1, 60))),
        ("Pax", str(r.randint(1, 9))),
        ("Salesperson", words.word(r)),
        ("Member", words.code(r)),
        ("Terminal", str(r.randint(1, 30))),
        ("Server", words.person(r)),
        ("Counter", words.code(r)),
        ("Ref", words.code(r)),
        ("Customer", r.choice(("CASH", words.person(r)))),
        ("Page", "1 of 1"),
        ("Order No", words.code(r)),
        ("Operator", words.word(r)),
        ("Shift", str(r.randint(1, 4))),
    ]
    for name, value in r.sample(others, min(len(others), r.randint(0, space))):
        rows.append((name, value))
        more.append((f"What is the {name.lower()}?", value))
    r.shuffle(rows)
    for name, value in rows:
        if name:
            pair(paper, cased(paper, name), value, at)
        else:
            paper.line(value, r.choice(("left", "centre")))
    return answers, more


def _amounts(paper: Paper, place: words.Place, sums: list[tuple[str, str]]) -> None:
    """Write labelled amounts, in the habits of one printer."""
    r = paper.r
    currency = r.choice(("", "", place.currency, f"{place.currency} "))
    beside, at = r.random() < 0.3, r.uniform(0.45, 0.7)
    colon = r.choice(("", ":", " :"))
    mark = f" ({place.currency})" if r.random() < 0.2 else ""
    for label, value in sums:
        text = cased(paper, f"{label}{mark if 'otal' in label else ''}{colon}")
        shown = f"{currency}{value}" if "tem" not in label and "ty" not in label else value
        paper.row(
            [
                (0.0 if not beside else 0.15, text, "left"),
                (1.0 if not beside else at, shown, "right"),
            ]
        )


def bought_goods(paper: Paper, count: int, more: list[tuple[str, str]]) -> list[int]:
    """Write bought goods; return their amounts in cents, and append questions about them."""
    r, prices = paper.r, []
    habit = r.random()
    if r.random() < 0.6:
        heads = (
            ["Item", "Qty", "Price", "Amount"],
            ["Description", "Qty", "U.Price", "Total"],
            ["Code", "Qty", "RM", "Amt"],
        )
        names = r.choice(heads)
        paper.row(
            [
                (0.0, names[0], "left"),
                (0.5, names[1], "centre"),
                (0.72, names[2], "right"),
                (1.0, names[3], "right"),
            ]
        )
        if r.random() < 0.5:
            paper.rule()
    for _ in range(count):
        unit, quantity = r.randint(30, 9999), r.choice((1, 1, 1, 2, 3, 5, 10))
        name, amount = cased(paper, words.goods(r)), words.money(unit * quantity)
        suffix = r.choice(("", "", " SR", " S", " ZRL", " T")) if habit < 0.4 else ""
        if habit < 0.35:
            paper.row([(0.0, name, "left")])
            counted = r.choice(
                (f"{quantity} x {words.money(unit)}", f"{quantity} PC {words.money(unit)}")
            )
            paper.row([(0.08, counted, "left"), (1.0, amount + suffix, "right")])
        elif habit < 0.6:
            paper.row([(0.0, words.code(r), "left")])
            paper.row(
                [(0.0, name[:18], "left"), (0.62, str(quantity), "right"), (1.0, amount, "right")]
            )
            name = name[:18]
        else:
            begin = f"{quantity} {name}" if r.random() < 0.4 else name
            paper.row([(0.0, begin[:24], "left"), (1.0, amount, "right")])
            name = name[:20]
        more.append((f"What is the price of {name.strip()}?", amount))
        prices.append(unit * quantity)
    return prices


def sums(
    paper: Paper, place: words.Place, bought: int, count: int, answers: dict[str, str]
) -> None:
    """Write subtotal, tax, rounding, total, cash and change, or some of them."""
    r = paper.r
    rate = r.choice((0, 0, 5, 6, 6, 7, 10, 20))
    inclusive = r.random() < 0.5
    tax = round(bought * rate / (100 + rate)) if inclusive else round(bought * rate / 100)
    before = bought - tax if inclusive else bought
    total = before + tax
    rounding = (-total) % 5 if r.random() < 0.3 else 0
    rounding = rounding - 5 if rounding > 2 else rounding
    paid = total + rounding
    money = words.money
    rows: list[tuple[str, str]] = []
    if r.random() < 0.35:
        rows.append(
            (r.choice(("Total Qty", "No. of Items", "Item Count", "Total Items")), str(count))
        )
    if rate and r.random() < 0.3:  # sums of goods by their tax, which are decoys
        rows.append(("Total 0% supplies", money(before // 3)))
        rows.append((f"Total {rate}% supplies", money(before - before // 3)))
    if rate and r.random() < 0.8:
        rows.append(
            (
                r.choice(
                    (
                        f"Total Excl. {place.tax}",
                        "Subtotal",
                        "Sub Total",
                        "Total Sales (Excluding Tax)",
                        "Amount before tax",
                        "Sub-Total",
                    )
                ),
                money(before),
            )
        )
        answers["subtotal"] = money(before)
        rows.append(
            (
                r.choice(
                    (
                        f"{place.tax} {rate}%",
                        f"Total {place.tax}",
                        f"{place.tax} @ {rate}%",
                        f"{place.tax} Payable",
                    )
                ),
                money(tax),
            )
        )
        answers["tax"] = money(tax)
    if r.random() < 0.25:
        rows.append((r.choice(("Discount", "Total Discount", "Less Discount")), money(0)))
    if rounding or r.random() < 0.25:
        rows.append((r.choice(("Total", "Total Sales", f"Total Incl. {place.tax}")), money(total)))
        rows.append(
            (r.choice(("Rounding", "Rounding Adj", "Rounding Adjustment")), money(rounding))
        )
        names: tuple[str, ...] = (
            "Rounded Total",
            "Net Total",
            "Total Payable",
            "Total Rounded",
            "Grand Total",
            "TOTAL",
        )
    else:
        names = (
            "Total",
            "TOTAL",
            "Grand Total",
            "Total Amount",
            "Amount Due",
            "Nett Total",
            "Total Due",
            f"Total Incl. {place.tax}",
            "Total Sales (Inclusive of Tax)",
            "NET TOTAL",
        )
    rows.append((r.choice(names), money(paid)))
    answers["total"] = money(paid)
    given = 0
    if r.random() < 0.75:
        given = (
            paid if r.random() < 0.3 else -(-paid // 500) * 500 + r.choice((0, 0, 500, 1000, 5000))
        )
        how = r.choice(
            ("Cash", "CASH", "Cash Tendered", "Paid", "Payment", "Amount Tendered", "Tender")
        )
        card = r.random() < 0.2
        rows.append(
            (r.choice(("VISA", "Master Card", "Credit Card")) if card else how, money(given))
        )
        if not card:
            answers["cash"] = money(given)
        if r.random() < 0.8:
            rows.append(
                (r.choice(("Change", "CHANGE", "Change Due", "Balance")), money(given - paid))
            )
            answers["change"] = money(given - paid)
    _amounts(paper, place, rows)
