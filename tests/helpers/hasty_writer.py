"""A writer of another program that publishes a segment before it writes the header."""

from collections.abc import Callable
from pathlib import Path

from reference import format as fmt

SEGMENT_BYTES = 4096


class HastyWriter(fmt.ForeignWriter):
    """Publishes a segment first and writes its header afterwards, with a pause after each step."""

    creating = False

    def __init__(self, path: Path, stop: Callable[[], object], first_segment: int = 0) -> None:
        self.stop = stop
        super().__init__(path, SEGMENT_BYTES, first_segment=first_segment)

    def _create(self, segment_size: int, first_segment: int) -> None:
        self.creating = True
        super()._create(
            segment_size, first_segment
        )  # which creates the control block before any segment
        self.creating = False
        self._publish_segment(first_segment)
        self._enter(first_segment, fmt.DATA_OFFSET)

    def _enter(self, segment_id: int, offset: int) -> None:
        if not self.creating:
            super()._enter(segment_id, offset)

    def sync(self) -> None:
        """Sync the queue, unless it has no segment yet."""
        if self._segment_fd >= 0:
            super().sync()

    def _publish_segment(self, segment_id: int) -> None:
        if self.creating:
            return
        header = fmt.encode_segment_header(segment_id)
        with (self.path / fmt.segment_name(segment_id)).open("xb", buffering=0) as file:
            self.stop()
            file.write(bytes(17))
            self.stop()
            file.truncate(self.segment_size)
            self.stop()
            file.seek(0)
            file.write(header[:4])
            self.stop()
            file.write(header[4:8])
            self.stop()
            file.write(header[8:])
            self.stop()
