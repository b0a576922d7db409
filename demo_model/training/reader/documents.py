"""Documents: receipts, invoices, letters, tables and forms, with questions about them.

An answer is text of the page, character by character; parts in several lines are joined by a space.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.reader import words
from training.reader.paper import Fonts, Paper
from training.reader.parts import (
    Document,
    bought_goods,
    cased,
    facts,
    finished,
    header,
    new_paper,
    pair,
    sums,
)


def any_document(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw a document of any kind, of about so many lines."""
    kinds: list[Callable[[Random, Fonts, int], Document]] = [receipt, invoice, letter, table, form]
    (draw,) = r.choices(kinds, [74, 10, 5, 4, 7])
    return draw(r, fonts, lines)


def receipt(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw a receipt with goods, sums, and decoys beside the total."""
    paper, place = new_paper(r, fonts), r.choice(words.PLACES)
    answers = header(paper, place, r.choice(("centre", "centre", "left")))
    if r.random() < 0.5:
        title = r.choice(
            ("TAX INVOICE", "INVOICE", "CASH BILL", "RECEIPT", "CASH SALES", "Official Receipt")
        )
        paper.line(title, "centre", head=True)
    if lines > 16 and r.random() < 0.2:
        _customer(paper, place)
    if r.random() < 0.6:
        paper.rule()
    known, more = facts(paper, words.date(r), 4 if lines > 16 else 1)
    answers |= known
    paper.rule()
    prices = bought_goods(paper, r.randint(1, max(1, min(14, lines // 2 - 5))), more)
    if r.random() < 0.7:
        paper.rule()
    sums(paper, place, sum(prices), len(prices), answers)
    if lines > 16 and r.random() < 0.4:
        _tax_table(paper, place, sum(prices))
    _farewell(paper)
    return finished(paper, answers, more)


def _customer(paper: Paper, place: words.Place) -> None:
    """Write to whom a receipt is made out, whose name and address are decoys."""
    r = paper.r
    if r.random() < 0.7:
        paper.line(r.choice(("Bill To:", "Customer", "Deliver to", "M/S")), "left")
    for text in (words.company(r, place), *words.address(r, place)):
        paper.line(cased(paper, text), "left")


def _tax_table(paper: Paper, place: words.Place, bought: int) -> None:
    """Write the summary of a tax, whose sums are decoys."""
    r = paper.r
    paper.line(f"{place.tax} Summary", r.choice(("left", "centre")))
    paper.row(
        [
            (0.0, "Code", "left"),
            (0.4, "Rate", "right"),
            (0.7, "Amount", "right"),
            (1.0, "Tax", "right"),
        ]
    )
    paper.row(
        [
            (0.0, r.choice(("SR", "S=6%", "ZRL", "T1")), "left"),
            (0.4, "6%", "right"),
            (0.7, words.money(round(bought / 1.06)), "right"),
            (1.0, words.money(bought - round(bought / 1.06)), "right"),
        ]
    )


def _farewell(paper: Paper) -> None:
    """Write what receipts end with."""
    lines = (
        "Thank you, please come again",
        "GOODS SOLD ARE NOT RETURNABLE",
        "Thank You!",
        "Have a nice day",
        "Exchange within 7 days with receipt",
        "Customer copy",
        "THANK YOU FOR SHOPPING",
        "No refund",
        "Please keep this receipt",
        f"Printed on {words.time(paper.r)}",
    )
    for line in paper.r.sample(lines, paper.r.randint(0, 3)):
        paper.line(cased(paper, line), "centre")


def invoice(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw an invoice: two addresses, a date of issue and one of payment, a table of goods."""
    paper, place = new_paper(r, fonts, wide=True), r.choice(words.PLACES)
    answers = header(paper, place, r.choice(("left", "centre", "right")))
    paper.line(
        r.choice(("INVOICE", "Tax Invoice", "BILL")),
        r.choice(("left", "centre", "right")),
        head=True,
    )
    customer = words.company(r, place) if r.random() < 0.6 else words.person(r)
    dated = words.date(r)
    day, due, number = dated(), dated(), words.code(r)
    left = [r.choice(("Bill To:", "Sold to:", "Customer:")), customer, *words.address(r, place)[:2]]
    right = [
        (r.choice(("Invoice No", "No.")), number),
        (r.choice(("Date", "Invoice Date")), day),
        (r.choice(("Due Date", "Pay by")), due),
        ("Terms", r.choice(("30 Days", "C.O.D.", "Cash"))),
    ]
    r.shuffle(right)
    for text, (label, value) in zip(left, right, strict=False):
        cells = [(0.0, text[:28], "left"), (0.6, f"{label}:", "left"), (1.0, value, "right")]
        paper.row(cells)
    answers |= {"date": day, "due": due, "number": number, "customer": customer[:28]}
    more: list[tuple[str, str]] = []
    paper.down(0.5)
    prices = bought_goods(paper, r.randint(1, max(1, min(10, lines // 2 - 6))), more)
    paper.rule()
    sums(paper, place, sum(prices), len(prices), answers)
    for name in ("cash", "change"):
        answers.pop(name, None)
    return finished(paper, answers, more)


_PHRASES = (
    "we thank you for your order of last week",
    "please find enclosed the papers you asked for",
    "the goods left our store on Monday",
    "we regret the delay",
    "kindly confirm the receipt",
    "your account has been updated",
    "the meeting will take place in our office",
    "please contact us if you have questions",
    "our new prices are valid from next month",
    "the repair has been completed",
    "payment is expected within two weeks",
    "your request has been accepted",
    "we look forward to hearing from you",
)


def letter(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw a letter: sender, date, addressee, some sentences with a sum, and a name."""
    paper, place = new_paper(r, fonts), r.choice(words.PLACES)
    answers = header(paper, place, r.choice(("left", "centre", "right")))
    day, customer, number = words.date(r)(), words.person(r), words.code(r)
    paper.down(0.5)
    paper.line(
        r.choice((day, f"Date: {day}", f"{words.word(r)}, {day}")), r.choice(("left", "right"))
    )
    paper.line(f"{r.choice(('Dear', 'To', 'Attn:'))} {customer}{r.choice((',', ''))}")
    paper.line(f"{r.choice(('Re:', 'Subject:', 'Our ref:'))} {number}")
    amount = f"{place.currency} {words.money(r.randint(500, 99999))}"
    sentences = [r.choice(_PHRASES).capitalize() for _ in range(r.randint(1, max(1, lines // 5)))]
    sentences.insert(r.randint(0, len(sentences)), f"The amount of {amount} is open")
    text, row = ". ".join(sentences) + ".", ""
    for piece in text.split():
        if row and paper.wide(f"{row} {piece}") > paper.width - 2 * paper.margin:
            paper.line(row)
            row = ""
        row = f"{row} {piece}".strip()
    paper.line(row)
    signed = words.person(r)
    paper.line(r.choice(("Yours sincerely,", "Best regards,", "Yours faithfully")))
    paper.line(signed)
    more = [("Who signed the letter?", signed), ("Which amount is open?", amount)]
    return finished(paper, answers | {"date": day, "customer": customer, "number": number}, more)


def table(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw a table of names and numbers under a title."""
    paper = new_paper(r, fonts)
    title = (
        f"{r.choice(('Price list', 'Report', 'Stock', 'Timetable', 'Results'))} {words.any_word(r)}"
    )
    paper.line(title, r.choice(("left", "centre")), head=True)
    columns = r.sample(
        ("Price", "Stock", "Weight", "Code", "Points", "Year", "Size"), r.choice((1, 2, 2, 3))
    )
    places = [0.45 + 0.55 * (i + 1) / len(columns) for i in range(len(columns))]
    paper.row(
        [(0.0, "Name", "left"), *((p, c, "right") for p, c in zip(places, columns, strict=True))]
    )
    more: list[tuple[str, str]] = []
    for _ in range(r.randint(2, max(2, min(14, lines)))):
        name = words.any_word(r) if r.random() < 0.5 else words.goods(r)[:14]
        cells = [
            words.money(r.randint(10, 99999)) if r.random() < 0.5 else str(r.randint(1, 9999))
            for _ in columns
        ]
        paper.row(
            [(0.0, name, "left"), *((p, c, "right") for p, c in zip(places, cells, strict=True))]
        )
        for column, cell in zip(columns, cells, strict=True):
            more.append((f"What is the {column.lower()} of {name}?", cell))
    names = [question for question, _ in more]
    more = [(q, a) for q, a in more if names.count(q) == 1]
    return finished(paper, {}, [("What is the title?", title), *more])


def form(r: Random, fonts: Fonts, lines: int) -> Document:
    """Draw a form of labels and values in random order."""
    paper, place = new_paper(r, fonts), r.choice(words.PLACES)
    paper.line(
        r.choice(("Registration", "Application Form", "Delivery Note", "Guest Card", "Order")),
        "centre",
        head=True,
    )
    dated = words.date(r)
    values = {
        "Name": words.person(r),
        "Company": words.company(r, place),
        "Date": dated(),
        "Phone": words.phone(r),
        "Address": " ".join(words.address(r, place)[:2]),
        "Order No": words.code(r),
        "Date of birth": dated(),
        "Amount": words.money(r.randint(100, 999999)),
        "City": words.word(r),
        "Room": str(r.randint(1, 999)),
        "Item": words.goods(r),
        "Quantity": str(r.randint(1, 500)),
        "Signed by": words.person(r),
        "Time": words.time(r),
        "Reference": words.code(r),
    }
    names = r.sample(list(values), min(len(values), r.randint(3, max(3, min(12, lines)))))
    at = r.uniform(0.3, 0.5)
    for name in names:
        pair(paper, cased(paper, name), values[name], at)
        if r.random() < 0.1:
            paper.rule()
    more = [(f"What is the {name.lower()}?", values[name]) for name in names]
    return finished(paper, {}, more)
