"""Another implementation of JSON Schema: ``jsonschema``, which is there where tests are."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]


def fault(schema: Any, value: Any) -> str | None:
    """Why ``value`` is not valid; None where it is. Formats are annotations, as the standard has
    them."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    error = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
    return None if error is None else str(error.message)[:300]
