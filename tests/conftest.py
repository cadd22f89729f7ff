"""For all tests: properties have no deadline for an example, since a busy machine would fail them; pytest-timeout ends what hangs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kopgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kopgate")
