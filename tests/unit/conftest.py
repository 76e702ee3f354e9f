"""How hard the properties are tried: the same examples on every run here, many and random ones on demand."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("unit", max_examples=25, deadline=None, derandomize=True, database=None)
# HYPOTHESIS_PROFILE=thorough pytest tests/unit: for a change in one of the modules under test.
settings.register_profile(
    "thorough", max_examples=3000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))
