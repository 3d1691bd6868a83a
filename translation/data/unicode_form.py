"""Write text in one form of Unicode, so that the same text is always the same characters.

The letter é can be written as one character (form NFC), or as an e and an accent (form NFD, as
macOS and many Vietnamese and Korean programs write it). All text that is learned from, translated
or scored is composed, which is form NFC. Composing changes nothing but this spelling. The
compatibility form NFKC would do more, such as turn the no-break spaces of French into common ones.
"""

import unicodedata
from typing import Final

UNICODE_FORM: Final = "NFC"


def composed(text: str) -> str:
    """Return a text in form NFC, with "?" for each lone surrogate, which is no text."""
    in_form = unicodedata.normalize(UNICODE_FORM, text)
    try:
        in_form.encode()
    except UnicodeEncodeError:  # a lone surrogate, which a text read from JSON may have
        return in_form.encode(errors="replace").decode()
    return in_form
