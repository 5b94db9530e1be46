"""`--option KEY=VALUE` of the commands that call something with arguments of its own, and who is compared."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.planners.judging.comparison import Competitor

_TRUTHS = {"true": True, "false": False, "none": None}


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """Arguments by name: numbers, truth values, None, text, and tuples of these.

    Raises:
        UsageError: a word is no KEY=VALUE, or a key is there twice.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"option {word!r}: expected KEY=VALUE, such as sequence=256")
        if key in options:
            raise UsageError(f"option {key} is given twice")
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


def planner_options(name: str, words: Iterable[str]) -> dict[str, Any]:
    """Options of a planner: a word where a number is due would end in its traceback.

    Raises:
        PolicyError: no such planner.
        UsageError: a word is no KEY=VALUE, the planner has no such option, or its values are of another kind.
    """
    from umadvise import planners

    options = parse_options(words)
    for key, parameter in planners.known_options(name, options).items():
        if key in options and not _is_one(options[key], parameter.annotation):
            expected = _words(parameter.annotation)
            raise UsageError(f"option {key}={options[key]}: expected {expected}, such as {parameter.default!r}")
    return options


def _is_one(value: object, annotation: Any) -> bool:
    """Whether a value is of a type, a Literal, or a union of such."""
    kinds = get_args(annotation)
    if get_origin(annotation) is Literal:
        return value in kinds
    if kinds:
        return any(_is_one(value, kind) for kind in kinds)
    wanted = (int, float) if annotation is float else annotation
    return isinstance(value, wanted) and isinstance(value, bool) is (annotation is bool)


def _words(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    return str(getattr(annotation, "__name__", annotation)).replace("None", "none")


def parse_competitors(text: str) -> "list[Competitor]":
    """Planners with or without options, and files of plans: "window,lms:sync_mode=3,swapin_ahead=2,mine.plan".

    Raises:
        PolicyError: a word is neither a planner nor a file.
        UsageError: an option is wrong, or two have the same name.
    """
    from umadvise import planners
    from umadvise.planners.judging.comparison import Competitor

    groups: list[list[str]] = []
    for word in (each.strip() for each in text.split(",")):
        if not word:
            raise UsageError(f"--planner {text!r}: expected words with commas between them")
        if groups and "=" in word and ":" not in word and not Path(word).is_file():
            groups[-1].append(word)  # one more option of the one before
        else:
            groups.append([word])
    found: dict[str, Competitor] = {}
    for words in groups:
        name, colon, first = words[0].partition(":")
        if name not in planners.PLANNERS and len(words) == 1 and Path(words[0]).is_file():
            competitor = Competitor(Path(words[0]).name, plan_file=words[0])
        else:
            options = planner_options(name, [first, *words[1:]] if colon else words[1:])
            competitor = Competitor(",".join(words), name, tuple(options.items()))
        if competitor.name in found:
            raise UsageError(f"--planner {text!r}: two are called {competitor.name}")
        found[competitor.name] = competitor
    return list(found.values())
