"""Where logs and reports may lie."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from reports.places import argument, folder


@pytest.mark.parametrize("text", ["logs", "/var/log/kopgate", "./a:b", "date=2026-11-20"])
def test_a_path_is_a_folder(text):
    assert folder(text) == Path(text)


@pytest.mark.parametrize(
    "text", ["s3a://bucket/logs", "hdfs://name/logs", "file:///logs", "abfss://a@b/c", "gs:/x"]
)
def test_an_address_is_none_and_is_told_what_to_do(text):
    with pytest.raises(ValueError, match=r"is no folder of this machine.*mounted or copied"):
        folder(text)
    with pytest.raises(argparse.ArgumentTypeError, match="is no folder of this machine"):
        argument(text)
