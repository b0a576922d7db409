"""Text from data is seen, whatever it is made of."""

import pytest

from foveate.pictures.escaping import escape_hidden, short, width

from .hostile import NAMES, PILE


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\u202eabc", "[U+202E]abc"),
        ("a\nb\x00\x1b", "a[U+000A]b[U+0000][U+001B]"),
        ("\ud83d", "[U+D83D]"),
        ("\u200b\ufeff", "[U+200B][U+FEFF]"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("a\u200d", "a[U+200D]"),
        ("क\u200dष", "क\u200dष"),
        (PILE, "e\u0301\u0301\u0301[+57 marks]"),
        (f"{PILE}a", "e\u0301\u0301\u0301[+57 marks]a"),
        ("\u0301a", "\u25cc\u0301a"),
        ("日本語 é", "日本語 é"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_has_its_code(text: str, seen: str) -> None:
    assert escape_hidden(text) == seen
    assert escape_hidden(seen) == seen


def test_what_is_kept_stays() -> None:
    assert escape_hidden("a\n\t\r", keep="\n\t") == "a\n\t[U+000D]"


@pytest.mark.parametrize("text", NAMES)
def test_short_names_are_as_wide_as_they_may_be_and_keep_both_ends(text: str) -> None:
    for most in (1, 2, 9, 30):
        name = short(text, most)
        assert width(name) <= most
        assert name == escape_hidden(text) or "…" in name
    assert short("ab" * 20 + "yz", 9) == "abab…abyz"
    assert short("日本語の名前", 8) == "日…前" or width(short("日本語の名前", 8)) in (7, 8)
    name.encode("utf-8")
