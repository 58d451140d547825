"""The cffi binding of csrc/aiochronicle.h.

The header is the manual and cffi checks every call against it, so its functions and constants are
not spelled out here a second time.
"""

from typing import Any

class _FFI:
    NULL: Any
    def new(self, cdecl: str, init: object = ...) -> Any: ...
    def cast(self, cdecl: str, source: object) -> Any: ...
    def string(self, cdata: Any, maxlen: int = ...) -> bytes: ...
    def buffer(self, cdata: Any, size: int = ...) -> Any: ...
    def callback(self, cdecl: str, python_callable: object = ...) -> Any: ...

class _Lib:
    def __getattr__(self, name: str) -> Any: ...

ffi: _FFI
lib: _Lib
