"""Numbers as English words."""

from __future__ import annotations

_NAMES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
_ONES = _NAMES.split()
_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
CARDINAL_MAX = 10**15
"""Longer numbers are read digit by digit."""


def cardinal(number: int) -> str:
    """342 -> "three hundred forty two". From 0 up to CARDINAL_MAX, beyond it by digits."""
    if number >= CARDINAL_MAX:
        return digits(str(number))
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {cardinal(rest)}" if rest else "")
    scale, name = next(pair for pair in _SCALES if number >= pair[0])
    count, rest = divmod(number, scale)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """21 -> "twenty first"."""
    *front, last = cardinal(number).split()
    if last in _ORDINALS:
        last = _ORDINALS[last]
    elif last.endswith("y"):
        last = f"{last[:-1]}ieth"
    else:
        last = f"{last}th"
    return " ".join([*front, last])


def digits(text: str) -> str:
    """ "07" -> "zero seven"."""
    return " ".join(_ONES[int(digit)] for digit in text)


def year(number: int) -> str:
    """1945 -> "nineteen forty five", 1905 -> "nineteen oh five", 2000..2009 as cardinals."""
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def decimal(whole: str, fraction: str) -> str:
    """("3", "14") -> "three point one four"."""
    return f"{cardinal(int(whole or '0'))} point {digits(fraction)}"


def clock(hours: int, minutes: int) -> str:
    """15:05 -> "fifteen oh five"; full hours are "o'clock" up to twelve."""
    if minutes == 0:
        return f"{cardinal(hours)} o'clock" if 1 <= hours <= 12 else f"{cardinal(hours)} hundred"
    return f"{cardinal(hours)} {'oh ' if minutes < 10 else ''}{cardinal(minutes)}"


_PARTS = {2: "half", 4: "quarter"}


def fraction(above: int, below: int) -> str:
    """1/2 -> "one half", 3/4 -> "three quarters", 7/0 -> "seven over zero"."""
    if not 2 <= below <= 100 or above > 100:
        return f"{cardinal(above)} over {cardinal(below)}"
    name = _PARTS.get(below) or ordinal(below)
    if above != 1:
        name = "halves" if name == "half" else f"{name}s"
    return f"{cardinal(above)} {name}"
