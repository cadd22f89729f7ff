"""Loads the compiled module for Pulsar's messages, and has the bases of classes that it shares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from storage.bridge import Completion

_INTERFACE = 4
"""Expected INTERFACE of the compiled module; incremented when one of its functions changes."""

compiled: Any = None
"""The compiled module; None if it is not built, or the library lacks a function."""

BINDING_REASON = ""
"""Why `compiled` is None."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") not in ("", "0"):
    BINDING_REASON = "KOPGATE_PURE_PYTHON is set"
else:
    try:
        import storage.pulsar.client._library as _library
    except ImportError as error:
        BINDING_REASON = str(error)
    else:
        # Both modules for an append are compiled, or none.
        if _library.INTERFACE == _INTERFACE and issubclass(_library.InFlightMessage, Completion):
            compiled = _library
        else:
            BINDING_REASON = "the compiled module has another version"

# Bases of the classes whose state compiled code uses: they have the attributes in C fields.
if TYPE_CHECKING or compiled is None:

    class AppendState: ...

    class InFlightState: ...

    class IndexState: ...

    class LogState: ...

    class ProducerState: ...

    class ReaderState: ...

else:
    AppendState, InFlightState = compiled.AppendState, compiled.InFlightState
    IndexState, LogState = compiled.IndexState, compiled.LogState
    ProducerState, ReaderState = compiled.ProducerState, compiled.ReaderState
