"""Builds the two compiled modules of aiochronicle; everything else is in pyproject.toml.

The engine keeps state for the whole process (its housekeeping thread), so there may be one copy of
it only: ``_hot`` contains it and exports its ``ac_*`` functions, and ``_engine`` is linked
against ``_hot``.

Switches, read from the environment:
  AIOCHRONICLE_SANITIZE=address,undefined   build with these sanitizers
  AIOCHRONICLE_COVERAGE=1                   build for gcov
  AIOCHRONICLE_WERROR=1                     warnings are errors
"""

import os
import runpy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ENGINE_BUILDER = "csrc/python/build_engine.py"


def switched_flags() -> tuple[list[str], list[str]]:
    """Return what the environment adds to the compiler's and to the linker's flags."""
    compile_flags: list[str] = []
    link_flags: list[str] = []
    if sanitizers := os.environ.get("AIOCHRONICLE_SANITIZE"):
        link_flags.append(f"-fsanitize={sanitizers}")
        compile_flags += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
        # Python is compiled with -fwrapv, which would hide signed overflow.
        compile_flags += ["-fno-wrapv", "-fno-omit-frame-pointer", "-O1", "-g"]
    if os.environ.get("AIOCHRONICLE_COVERAGE") == "1":
        link_flags.append("--coverage")
        compile_flags += ["--coverage", "-fprofile-update=atomic", "-O0", "-g"]
    if os.environ.get("AIOCHRONICLE_WERROR") == "1":
        compile_flags.append("-Werror")
    return compile_flags, link_flags


class BuildExtensions(build_ext):
    """Compiles file by file in parallel, and links ``_engine`` against the ``_hot`` just built."""

    def build_extensions(self) -> None:
        # Whole modules must not be built side by side: one needs the other.
        self.parallel = None
        compile_in_turn: Callable[..., list[str]] = self.compiler.compile

        def compile_in_parallel(sources: Sequence[str], *args: Any, **kwargs: Any) -> list[str]:
            def compile_one(source: str) -> list[str]:
                return compile_in_turn([source], *args, **kwargs)

            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                return [obj for objects in pool.map(compile_one, sources) for obj in objects]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        hot_path = Path(self.get_ext_fullpath(HOT.name))
        if ext is HOT:
            ext.extra_link_args.append(f"-Wl,-soname,{hot_path.name}")
        elif ext is ENGINE:
            source = Path(self.build_temp) / "_engine.c"
            source.parent.mkdir(parents=True, exist_ok=True)
            runpy.run_path(ENGINE_BUILDER)["ffibuilder"].emit_c_code(str(source))
            ext.sources = [str(source)]
            ext.library_dirs = [str(hot_path.parent)]
            ext.libraries = [f":{hot_path.name}"]
            ext.runtime_library_dirs = ["$ORIGIN"]
        super().build_extension(ext)


def sources(pattern: str) -> list[str]:
    folders = Path("csrc"), Path("csrc/python")
    return sorted(str(path) for folder in folders for path in folder.glob(pattern))


base_flags = Path("csrc/compile_flags.txt").read_text(encoding="utf-8").split()
extra_compile_flags, extra_link_flags = switched_flags()

HOT = Extension(
    "aiochronicle._hot",
    sources=sources("*.c"),
    include_dirs=["csrc"],
    depends=[*sources("*.h"), "setup.py", "csrc/compile_flags.txt"],
    # The exported functions are called from within as well; nobody may put others in their place,
    # so these calls need no detour through the symbol table and may be inlined.
    extra_compile_args=[*base_flags, "-fno-semantic-interposition", *extra_compile_flags],
    # -z now: a function that is missing is noticed at import, and no first call is slower.
    extra_link_args=["-pthread", "-Wl,-Bsymbolic-functions", "-Wl,-z,now", *extra_link_flags],
)
ENGINE = Extension(
    "aiochronicle._engine",
    sources=[],  # generated when its turn comes
    include_dirs=["csrc"],
    depends=["csrc/aiochronicle.h", ENGINE_BUILDER, "setup.py", "csrc/compile_flags.txt"],
    extra_compile_args=[*base_flags, *extra_compile_flags],
    extra_link_args=["-Wl,-z,now", *extra_link_flags],
)

setup(ext_modules=[HOT, ENGINE], cmdclass={"build_ext": BuildExtensions})
