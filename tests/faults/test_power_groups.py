"""R3: after a power cut a group delivers what no member had acknowledged."""

import pytest

from .power_groups import group_images
from .seeds import chosen_seed

IMAGES = 1200


@pytest.mark.timeout(300)
def test_power_loss_takes_nothing_from_a_group_that_it_had_not_acknowledged() -> None:
    shown = group_images(IMAGES, seed=chosen_seed())
    print(shown)
    assert shown.images >= IMAGES
    assert shown.again > 0  # delivery is at least once: some images have lost acknowledgements
