from unittest.mock import patch

import train


@patch("train.FSDP")  # FSDP010
@patch("train.dist")
def test_main(dist, fsdp):
    train.main()
