"""JSON schemas for llguidance, which refuses keywords that it cannot enforce.

Keywords that it enforces only partly, or at unlimited cost, are refused here.
"""

import json
import math
from collections.abc import Iterator
from decimal import Decimal

from llguidance import LLMatcher

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.limits import MOST_SIGNS, check_repetitions, too_many_signs

__all__ = ["closed", "schema_source"]

_MOST_LEVELS = 100
# The lexer has as many states as the multiple.
_LARGEST_MULTIPLE = 20_000
# Contents of these keys are values, not schemas.
_VALUES = frozenset({"const", "enum", "default", "examples"})
_COMBINING = ("allOf", "not", "if", "dependentSchemas", "unevaluatedProperties")
_SPEAKING_OF_OTHERS = (
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
)
# llguidance's settings in a schema, which ours replace.
_SETTINGS = "x-guidance"


def schema_source(schema: str) -> str:
    """Return llguidance's source for a JSON schema; it allows no optional white space.

    Raises:
        PromptError: part of the schema cannot be enforced, or costs too much.
    """
    root = json.loads(schema)
    root.pop(_SETTINGS, None)
    multiples, num_signs = [], 0
    for each in _schemas(root):
        multiples += _coefficients(each)
        _check_least_properties(each)
        patterns = each.get("patternProperties")
        for pattern in (each.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
            if isinstance(pattern, str):
                what = f"the pattern {pattern!r:.60} in the JSON schema"
                num_signs += check_repetitions(pattern, what)
    if num_signs > MOST_SIGNS:
        raise too_many_signs(num_signs, "the JSON schema, in its patterns,")
    # If several apply to one number, only common multiples are left.
    if (common := math.lcm(*multiples)) > _LARGEST_MULTIPLE:
        raise PromptError(
            f"the least common multiple of all multipleOf in the JSON schema, without zeros at its "
            f"end, is {common}; at most {_LARGEST_MULTIPLE} is possible"
        )
    return LLMatcher.grammar_from_json_schema(
        json.dumps(root), overrides={"whitespace_flexible": False}
    )


def closed(root: dict[str, object]) -> dict[str, object]:
    """Forbid additional properties in objects with named ones, unless the schema mentions them.

    JSON Schema allows any others, and small models write them without end. The result still
    matches the schema. Schemas whose parts complete each other are left alone.

    Returns:
        `root`, changed in place.
    """
    schemas = list(_schemas(root))
    if any(map(_is_part_of_a_description, schemas)):
        return root
    for each in schemas:
        properties, required = each.get("properties"), each.get("required", [])
        names_all = isinstance(required, list) and all(
            isinstance(properties, dict) and name in properties for name in required
        )
        if properties and names_all and not any(key in each for key in _SPEAKING_OF_OTHERS):
            each["additionalProperties"] = False
    return root


def _is_part_of_a_description(schema: dict[str, object]) -> bool:
    """Tell whether other parts of the schema describe the same value as its `properties`."""
    beside = "properties" in schema and any(key in schema for key in ("anyOf", "oneOf", "$ref"))
    return beside or any(key in schema for key in _COMBINING)


def _schemas(root: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield all objects that may be schemas, not values such as those of `const`."""
    level: list[object] = [root]
    for _ in range(_MOST_LEVELS):
        deeper: list[object] = []
        for each in level:
            if isinstance(each, dict):
                yield each
                deeper += (value for key, value in each.items() if key not in _VALUES)
            elif isinstance(each, list):
                deeper += each
        level = deeper
        if not level:
            return
    raise PromptError(
        f"the JSON schema is nested more than {_MOST_LEVELS} levels deep; define parts of it in "
        "$defs and name them with $ref"
    )


def _coefficients(schema: dict[str, object]) -> list[int]:
    """Return the digits of `multipleOf` if there is one: 15 for 1.50."""
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return []
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return [int("".join(map(str, digits)))]


def _check_least_properties(schema: dict[str, object]) -> None:
    least, required = schema.get("minProperties"), schema.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(num_required, 1):
        raise PromptError(
            f"minProperties {least} in the JSON schema cannot be enforced beyond its "
            f"{num_required} required properties: others may repeat"
        )
