"""Reading the small files in a queue's directory, which anybody may have put there."""

import os
import stat

__all__ = ["read_small_file"]


def read_small_file(path: str, max_bytes: int) -> bytes | None:
    """Return the content, None if there is no such file, ValueError if it is not to be used.

    Symbolic links are not followed, and nothing that could block or never end is read.
    """
    name = os.path.basename(path)  # noqa: PTH119
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{name} cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{name} is not a regular file")
        content = os.read(fd, max_bytes + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if len(content) > max_bytes:
        raise ValueError(f"{name} is larger than {max_bytes} bytes")
    return content
