"""Folders for logs and reports."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from reports.places import argument, folder


@pytest.mark.parametrize("text", ["logs", "/var/log/kopgate", "./a:b", "date=2026-11-20"])
def test_path_without_scheme_is_a_folder(text):
    assert folder(text) == Path(text)


@pytest.mark.parametrize(
    "text", ["s3a://bucket/logs", "hdfs://name/logs", "file:///logs", "abfss://a@b/c", "gs:/x"]
)
def test_object_store_url_is_rejected_with_advice(text):
    with pytest.raises(ValueError, match=r"is not a local folder.*mounted or copied"):
        folder(text)
    with pytest.raises(argparse.ArgumentTypeError, match="is not a local folder"):
        argument(text)
