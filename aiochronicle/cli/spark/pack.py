"""``aioc spark pack``."""

from typing import Annotated

from aiochronicle.cli.arguments import Json
from aiochronicle.cli.output import Output
from aiochronicle.cli.spark.arguments import Place, place
from aiochronicle.cli.spark.job import job

__all__ = ["pack"]


@job
def pack(
    *,
    out: Annotated[Place, place("FILE.tar.gz", "the file to write")],
    json: Json = False,
) -> None:
    """Pack the installed package as one file for a cluster.

    Example: aioc spark pack --out lib.tar.gz
    """
    from aiochronicle.spark.pack import pack as pack_package

    target = pack_package(out)
    Output(as_json=json).record(
        {"path": str(target), "bytes": target.stat().st_size},
        [
            ("file", str(target)),
            (
                "use",
                f"spark-submit --archives {target}#lib --conf spark.executorEnv.PYTHONPATH=./lib …",
            ),
        ],
    )
