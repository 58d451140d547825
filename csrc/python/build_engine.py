"""The cffi binding of the engine, made from the engine's own public header.

Everything between the lines ``/* cffi: begin */`` and ``/* cffi: end */`` of ``aiochronicle.h`` is
bound. That part has to stay within what cffi can parse: declarations and integer ``#define``s, no
conditionals, no attributes apart from ``AC_API``, and of the typedefs from system headers only
those of C and <stdint.h>.

``setup.py`` runs this file and makes ``aiochronicle._engine`` of its ``ffibuilder``.
"""

import re
from pathlib import Path

from cffi import FFI

HEADER = Path(__file__).resolve().parent.parent / "aiochronicle.h"
MARKED_PART = re.compile(r"^/\* cffi: begin \*/$(.*?)^/\* cffi: end \*/$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\S.*$", re.MULTILINE)
API_MARKER = re.compile(r"\bAC_API\b")


def declarations(header: str) -> str:
    """Return the marked parts of a header in the form cffi reads."""
    parts = MARKED_PART.findall(header)
    if not parts:
        raise ValueError(f"{HEADER}: no '/* cffi: begin */' … '/* cffi: end */'")
    text = COMMENT.sub(" ", "\n".join(parts)).replace("\\\n", " ")
    # The compiler, not cffi, works out what a constant is: so it may be any integer expression.
    text = DEFINE.sub(r"#define \1 ...", text)
    return API_MARKER.sub("", text)


ffibuilder = FFI()
ffibuilder.cdef(declarations(HEADER.read_text(encoding="utf-8")))
ffibuilder.set_source("aiochronicle._engine", '#include "aiochronicle.h"')
