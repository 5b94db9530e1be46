"""`--option KEY=VALUE` of the commands that call something with arguments of its own."""

from typing import Any

from umadvise.errors import UsageError

_TRUTHS = {"true": True, "false": False, "none": None}


def parse_options(words: list[str]) -> dict[str, Any]:
    """Arguments by name: numbers, truth values, None, text, and tuples of these.

    Raises:
        UsageError: a word is no KEY=VALUE, or a key is there twice.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--option {word!r}: expected KEY=VALUE, such as --option sequence=256")
        if key in options:
            raise UsageError(f"--option {key} is given twice")
        options[key] = _value(value)
    return options


def _value(text: str) -> Any:
    """A number, a truth value, None, several of them with commas between, or else the text itself."""
    if "," in text:
        return tuple(_value(part) for part in text.split(",") if part)
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
