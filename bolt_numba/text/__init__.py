"""Models of language: texts in, numbers out (docs/text.md).

It needs the package of the extra ``text``.
"""

from bolt_numba.text.encoder import Encoder
from bolt_numba.text.tokens import TokenRow, TruncationWarning

__all__ = ["Encoder", "TokenRow", "TruncationWarning"]
