"""Request and reply: desks ask a pricing service, which is killed and started again.

Desks and service are processes. Each desk has a queue of questions and a queue of answers; each answer
names its question as its `cause`. The next service answers the questions that a killed one has not
answered, and none is answered twice.
"""

import asyncio
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

DESKS = 3
QUESTIONS = 200


async def serve(root: Path, answers_max: int | None) -> None:
    async with aiochronicle.Responder(root / "questions", root / "answers") as service:
        async for request in service:
            quantity = int(request.payload)
            if quantity == 13:
                request.fail("bad luck")
            else:
                request.reply(b"%d" % (quantity * 101))
            if service.statistics().answered == answers_max:
                return  # in the middle of its work


def service_process(root: Path, answers_max: int | None) -> None:
    aiochronicle.run(serve(root, answers_max))


async def ask(root: Path, name: str) -> None:
    async with aiochronicle.Requester(root / "questions", root / "answers", name) as service:
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(service.request(b"%d" % (14 + number), timeout=60))
                for number in range(QUESTIONS)
            ]
        for number, task in enumerate(asked):
            assert int(task.result().payload) == (14 + number) * 101
        reason = ""
        try:
            await service.request(b"13", timeout=60)
        except aiochronicle.errors.RequestFailed as error:
            reason = str(error)
        assert reason == "bad luck"
        statistics = service.statistics()
        assert (statistics.answered, statistics.dropped) == (QUESTIONS, 0)


def desk_process(root: Path, name: str) -> None:
    aiochronicle.run(ask(root, name))


def main(root: Path) -> None:
    spawn = get_context("spawn").Process
    desks = [spawn(target=desk_process, args=(root, f"desk-{n}")) for n in range(DESKS)]
    for process in desks:
        process.start()
    first = spawn(target=service_process, args=(root, DESKS * QUESTIONS // 2))
    first.start()
    first.join()
    second = spawn(target=service_process, args=(root, None))
    second.start()
    for process in desks:
        process.join()
        assert process.exitcode == 0
    second.kill()
    second.join()
    answers = 0
    for n in range(DESKS):
        with aiochronicle.open_reader(root / "answers" / f"desk-{n}") as reader:
            answers += len({answer.cause for answer in reader})
            assert reader.statistics().messages == QUESTIONS + 1
    print(f"{answers} questions of {DESKS} desks, each answered once by two services")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
