"""The installed package as one file that spark-submit can send to a cluster.

``--py-files`` does not support compiled modules; an archive that is unpacked next to each executor does.
The executors need the same Python version and processor as the machine that packs.
"""

import tarfile
from pathlib import Path

import aiochronicle
from aiochronicle._base.locations import local_path
from aiochronicle.errors import ExportFailed
from aiochronicle.spark.private_files import replacing

__all__ = ["pack"]

SUFFIXES = (".py", ".so", ".pyi", ".typed")
TOP_LEVEL = "pyspark_chronicle.py"  # through which Spark finds the format


def pack(out: str) -> Path:
    """Write the package with its compiled parts to a .tar.gz file, and return its path.

    >>> pack(f"{tmp_path}/lib.tar.gz").name
    'lib.tar.gz'
    """
    package = Path(aiochronicle.__file__).parent
    target = Path(local_path(out)).absolute()
    try:
        with replacing(target) as fresh, tarfile.open(fileobj=fresh, mode="w:gz") as archive:
            for file in sorted(package.rglob("*")):
                if file.suffix in SUFFIXES:
                    archive.add(file, file.relative_to(package.parent))
            archive.add(package.parent / TOP_LEVEL, TOP_LEVEL)
    except OSError as error:
        raise ExportFailed(error.strerror or str(error), path=out, errno=error.errno) from error
    return target
