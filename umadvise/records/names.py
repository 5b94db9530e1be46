"""Texts in records that reports print to terminals: none holds a control character, and each has a longest length.

Marks that change the direction of text count as control characters: they would show words in another order.
"""

import re
from typing import Annotated

import msgspec

_CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
# \Z, not $: $ would let a final newline pass.
_PRINTABLE = rf"\A[^{_CONTROL}]*\Z"
MOST_NAME_CHARACTERS = 1024

Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME_CHARACTERS, pattern=_PRINTABLE)]
Sentence = Annotated[str, msgspec.Meta(max_length=4096, pattern=_PRINTABLE)]

_NOT_PRINTABLE = re.compile(f"[{_CONTROL}]")


def clean_name(text: str) -> str:
    """A name as a record may hold it: control characters become U+FFFD, what is too long is cut."""
    return _NOT_PRINTABLE.sub("\ufffd", text)[:MOST_NAME_CHARACTERS]
