from __future__ import annotations

from click.testing import CliRunner

from gateway.cli.main import main
from gateway.cli.settings_command import as_markdown
from gateway.settings.model import SECTIONS, Settings


def test_every_setting_is_listed_with_default():
    lines = CliRunner().invoke(main, ["settings"]).stdout.splitlines()
    heads = [line.split(" = ")[0] for line in lines if line and not line.startswith(" ")]
    assert heads == [name for section in SECTIONS.values() for name in section.model_fields]
    assert set(heads) == set(Settings.model_fields)
    assert "listeners = PLAINTEXT://127.0.0.1:9092" in lines
    assert "auto_create_topics_enable = true" in lines
    assert "users_file = none" in lines
    assert "log_cleanup_policy = delete" in lines


def test_markdown_table_has_row_per_setting():
    rows = [line for line in as_markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(Settings.model_fields)
    assert any(row.startswith("| `node_id` | `none` | Kafka's broker id of this") for row in rows)


def test_each_row_of_settings_table_has_same_number_of_cells():
    rows = [line for line in as_markdown().splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)
