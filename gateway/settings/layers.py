"""Loads the settings: flags override `KOPGATE_*` variables, which override a TOML file.

Errors name the flag, variable or file entry. Each layer accepts KoP's names as aliases. A setting
of one listener has the name `listener.NAME.SETTING` in all layers.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from gateway.settings.kop_aliases import SETTING_BY_KOP_NAME, kop_name_for
from gateway.settings.model import Settings

PREFIX = "KOPGATE_"
LISTENER = "listener"
#: Settings of Kafka's brokers that have a name of their own here. Others differ in dots only.
SETTING_BY_KAFKA_NAME = {
    "advertised.listeners": "advertised",
    "authorizer.class.name": "authorizer",
    "broker.id": "node_id",
    "log.dir": "store",
    "log.dirs": "store",
    "sasl.kerberos.keytab": "sasl_kerberos_keytab_file",
    "ssl.enabled.protocols": "ssl_min_version",
    "ssl.keystore.location": "ssl_certificate_file",
    "ssl.truststore.location": "ssl_ca_file",
}
OTHER_VARIABLES = frozenset({"KOPGATE_CONFIG", "KOPGATE_PURE_PYTHON", "KOPGATE_WORKER"})


class SettingsError(Exception):
    """Invalid settings; `problems` has one line per problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def load(
    flags: Mapping[str, Any],
    config: Path | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings from `flags` (only those given), the environment and the file `config`.

    `flag_names` maps fields to the user's flags; the default is `--set FIELD`. Raises
    SettingsError.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    layers: list[tuple[dict[str, Any], Callable[[str], str]]] = [
        (_flatten(_file(config, problems)), lambda field: f"{config}: {field}"),
        (_environment(problems), _variable),
        (
            {name: _coerce(name, value) for name, value in flags.items()},
            lambda field: (flag_names or {}).get(field, f"--set {field}"),
        ),
    ]
    for layer, name_of in layers:
        by_other_names: set[str] = set()
        for name, value in layer.items():
            field = _field(name)
            if field != name:
                if field in layer or field in by_other_names:
                    problems.append(f"{name_of(name)}: alias of {field}, which is also set")
                by_other_names.add(field)
            values[field] = value
            origin[field] = name_of(name)
    try:
        settings = Settings(**_nest(values))
    except ValidationError as error:
        problems += _problems(error, origin)
    if problems:
        raise SettingsError(problems)
    return settings


def _field(name: str) -> str:
    """The setting with this name or alias, as a key of a layer."""
    *listener, setting = name.rsplit(".", 1)
    return ".".join([*listener, SETTING_BY_KOP_NAME.get(setting, setting)])


def _flatten(layer: dict[str, Any]) -> dict[str, Any]:
    """Replace the tables `[listener.NAME]` of a file by keys `listener.NAME.SETTING`."""
    tables = layer.get(LISTENER)
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        return layer
    flat = {name: value for name, value in layer.items() if name != LISTENER}
    for listener, table in tables.items():
        for setting, value in table.items():
            name = f"{LISTENER}.{listener}.{setting}"
            # TOML has no null: an empty string unsets a file.
            flat[name] = _coerce(name, value) if value == "" else value
    return flat


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the keys `listener.NAME.SETTING` by the field `listener`."""
    fields: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        prefix, *inside = name.split(".", 2)
        if prefix == LISTENER and len(inside) == 2:
            tables.setdefault(inside[0], {})[inside[1]] = value
        else:
            fields[name] = value
    return {**fields, LISTENER: tables} if tables else fields


def _variable(name: str) -> str:
    """The environment variable of a setting, or of `listener.NAME.SETTING`."""
    return PREFIX + name.replace(".", "__").upper()


def _file(path: Path | None, problems: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not TOML: {error}")
    return {}


def _environment(problems: list[str]) -> dict[str, Any]:
    given = {field: _coerce(field, value) for field, value in EnvSettingsSource(Settings)().items()}
    for variable in sorted(os.environ):
        field = variable.removeprefix(PREFIX).lower()
        if (
            not variable.startswith(PREFIX)
            or variable in OTHER_VARIABLES
            or field in Settings.model_fields
        ):
            continue
        listener, _, setting = variable.removeprefix(_variable(f"{LISTENER}.")).rpartition("__")
        if listener and variable.startswith(_variable(f"{LISTENER}.")):
            setting = kop_name_for(setting.lower()) or setting.lower()
            name: str | None = f"{LISTENER}.{listener}.{setting}"
        else:
            name = kop_name_for(field)
        if name is None:
            problems.append(f"{variable}: {_unknown(field)}")
        else:
            given[name] = _coerce(name, os.environ[variable])
    return given


def _coerce(name: str, value: Any) -> Any:
    """Convert text to a number, boolean or None if the field's type allows it.

    The strict model validates the rest.
    """
    field = _field(name).rpartition(".")[2]
    annotation = Settings.model_fields[field].annotation if field in Settings.model_fields else None
    wanted = (
        get_args(annotation)
        if get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )
    if not isinstance(value, str):
        return value
    if int in wanted and re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip(), re.ASCII):
        return int(value)
    if float in wanted and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value.strip(), re.ASCII):
        return float(value)
    if bool in wanted and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if type(None) in wanted and not value.strip():
        return None
    return value


def _problems(error: ValidationError, origin: Mapping[str, str]) -> Iterator[str]:
    for item in error.errors(include_url=False, include_context=True):
        where, *inside = [str(step) for step in item["loc"]] or [""]
        if where == LISTENER and len(inside) >= 2:
            where, inside = ".".join([where, *inside[:2]]), inside[2:]
        cause = item.get("ctx", {}).get("error")
        text = str(cause) if isinstance(cause, ValueError) else item["msg"]
        if item["type"] == "extra_forbidden":
            prefix, _, setting = where.rpartition(".")
            is_listeners = prefix.startswith(f"{LISTENER}.")
            is_general = is_listeners and setting in Settings.model_fields
            text = "cannot be set for one listener" if is_general else _unknown(where)
            yield f"{origin.get(where, where)}: {text}"
        elif not where:
            for line in text.splitlines():
                field, _, rest = line.partition(": ")
                yield f"{origin.get(field, field)}: {rest}"
        else:
            given = (
                ""
                if isinstance(cause, ValueError) or not _is_plain(item["input"])
                else f", not {item['input']!r}"
            )
            inner = f" [{'.'.join(inside)}]" if inside and not inside[0].isdigit() else ""
            yield f"{origin.get(where, where)}{inner}: {text[:1].lower()}{text[1:]}{given}"


def _unknown(name: str) -> str:
    """The problem with an unknown setting, with the setting that may be meant.

    `name` may be spelled as in the configuration of Kafka's brokers.
    """
    known = [*Settings.model_fields, *SETTING_BY_KOP_NAME]
    alike = [
        match
        for spelled in (name.replace(".", "_"), name.rpartition(".")[2])
        for match in difflib.get_close_matches(spelled, known, n=1, cutoff=0.85)
    ]
    meant = SETTING_BY_KAFKA_NAME.get(name) or (alike[0] if alike else None)
    hint = f"did you mean {meant}?" if meant else "`kopgate settings` lists all settings"
    return f"unknown setting; {hint}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
