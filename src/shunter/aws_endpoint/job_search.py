"""SageMaker's Search: training jobs by their properties.

What an expression means: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SearchExpression.html

A property's name is a way through the service's own model, such as ``ResourceConfig.InstanceType``, or
``Tags.KEY``, ``HyperParameters.NAME``, ``Environment.NAME`` or ``Metrics.NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shunter.aws_endpoint.training_jobs import jobs_of, page_of_jobs
from shunter.schedulers.aws.service_model import shape_of
from shunter.schedulers.sagemaker_local_scheduler.description import describe, tag_list
from shunter.schedulers.sagemaker_local_scheduler.request_validation import check, invalid
from shunter.schedulers.supervisor.recovery import current_state

RESOURCE = "TrainingJob"
DEFAULT_PAGE = 100
MOST_CONDITIONS = 50
MOST_OF_EXPRESSION = 20

Job = dict[str, Any]
Condition = Callable[[Job], bool]


def search(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """Answer a Search request, from the jobs of a region.

    Raises:
        ApiError: the expression is invalid.
    """
    check("Search", params)
    if params["Resource"] != RESOURCE:
        raise invalid(f"Search finds resources of type {RESOURCE} on this machine, not {params['Resource']}")
    expression = params.get("SearchExpression")
    conditions = []
    if expression is not None:
        _check_limits(expression)
        conditions.append(_expression(expression))
    order = find_property(params.get("SortBy", "LastModifiedTime"))
    if order.kind == OBJECT:
        raise invalid(f"{order.name} has no values to sort by")
    # no other account shows its jobs to this machine
    everything = [] if params.get("CrossAccountFilterOption") == "CrossAccount" else _jobs(region)
    jobs = [job for job in everything if all(is_wanted(job) for is_wanted in conditions)]
    jobs = _sorted(jobs, order, params.get("SortOrder", "Descending") == "Descending")
    page, token = page_of_jobs(jobs, params, DEFAULT_PAGE)
    return {
        "Results": [{RESOURCE: job} for job in page],
        "TotalHits": {"Value": len(jobs), "Relation": "EqualTo"},
        **token,
    }


def _jobs(region: str) -> list[Job]:
    """Return a region's jobs as Search shows them, by name."""
    shown = shape_of("sagemaker", RESOURCE).members
    found = []
    for place in jobs_of(region):
        state = current_state(place)
        if state is None or place.read_request() is None:
            continue  # deleted just now
        job = {**describe(place, state), "Tags": tag_list(place.read_tags())}
        found.append({key: value for key, value in job.items() if key in shown})
    return found


def _sorted(jobs: list[Job], order: Property, is_descending: bool) -> list[Job]:
    """Return jobs in order of a property; those without it come last, equal ones by name."""
    keyed = [(order.sort_key(job), job) for job in jobs]
    having = [(key, job) for key, job in keyed if key is not None]
    having.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [job for _, job in having] + [job for key, job in keyed if key is None]


def _expression(expression: dict[str, Any]) -> Condition:
    """Return whether a job satisfies an expression."""
    conditions = [_filter(each) for each in expression.get("Filters") or ()]
    conditions += [_nested(each) for each in expression.get("NestedFilters") or ()]
    conditions += [_expression(each) for each in expression.get("SubExpressions") or ()]
    if not conditions:
        raise invalid("SearchExpression needs at least one of Filters, NestedFilters and SubExpressions")
    if len(conditions) > MOST_OF_EXPRESSION:
        raise invalid(f"SearchExpression has {len(conditions)} elements, at most {MOST_OF_EXPRESSION} fit")
    join = any if expression.get("Operator") == "Or" else all
    return lambda job: join(condition(job) for condition in conditions)


def _filter(given: dict[str, Any], inside: str = "") -> Condition:
    """Return whether a job, or one object of its list ``inside``, satisfies a filter."""
    name, wanted = given["Name"], given.get("Value")
    found = find_property(name, inside)
    operator = given.get("Operator") or ("Equals" if wanted is not None else "")
    if not operator:
        raise invalid(f"the filter of {name} has neither Operator nor Value")
    if operator in ("Exists", "NotExists"):
        expected = operator == "Exists"
        return lambda job: bool(found.values(job)) == expected
    if wanted is None:
        raise invalid(f"the filter of {name} has no Value, which {operator} needs")
    if operator == "NotEquals":
        is_equal = found.test("Equals", wanted)
        return lambda job: not any(is_equal(value) for value in found.values(job))
    test = found.test(operator, wanted)
    return lambda job: any(test(value) for value in found.values(job))


def _nested(given: dict[str, Any]) -> Condition:
    """Return whether one object in a list of a job satisfies all filters."""
    name = given["NestedPropertyName"]
    elements = element_of(name)
    conditions = [_filter(each, name) for each in given["Filters"]]
    return lambda job: any(all(condition(each) for condition in conditions) for each in elements(job))


def _check_limits(expression: dict[str, Any]) -> None:
    filters: list[dict[str, Any]] = []
    count, open_expressions = 0, [expression]
    while open_expressions:
        each = open_expressions.pop()
        nested, inner = each.get("NestedFilters") or [], each.get("SubExpressions") or []
        own = [*(each.get("Filters") or ()), *(one for group in nested for one in group["Filters"])]
        count += len(own) + len(nested) + len(inner)
        filters += own
        open_expressions += inner
    if count > MOST_CONDITIONS:
        raise invalid(f"SearchExpression has {count} conditions, at most {MOST_CONDITIONS} are allowed")
    if sum(each.get("Operator") == "Contains" for each in filters) > 1:
        raise invalid("'CONTAINS' operator usage limit of 1 exceeded.")


# ---- properties

TEXT, NUMBER, MOMENT, FLAG, EITHER, OBJECT = "text", "number", "timestamp", "boolean", "either", "object"
_KIND_OF_SHAPE = {
    "string": TEXT,
    "integer": NUMBER,
    "long": NUMBER,
    "float": NUMBER,
    "double": NUMBER,
    "timestamp": MOMENT,
    "boolean": FLAG,
}
_ORDERINGS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThan": lambda value, wanted: value > wanted,
    "GreaterThanOrEqualTo": lambda value, wanted: value >= wanted,
    "LessThan": lambda value, wanted: value < wanted,
    "LessThanOrEqualTo": lambda value, wanted: value <= wanted,
}

Values = Callable[[dict[str, Any]], list[Any]]
Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Property:
    """A property.

    Attributes:
        name: its whole name.
        kind: what its values are; ``either`` is text that may be a number, ``object`` can only exist or not.
        values: finds its values in a job: several where lists are on the way, none where it is not set.
    """

    name: str
    kind: str
    values: Values

    def sort_key(self, job: dict[str, Any]) -> Any:
        """Return what jobs are sorted by; None where a job has no such property."""
        found = self.values(job)
        if not found:
            return None
        if self.kind != EITHER:
            return found[0]
        number = _number(found[0])
        return (0, number, "") if number is not None else (1, 0.0, found[0])

    def test(self, operator: str, wanted: str) -> Test:
        """Return a function that tells whether a value stands in a relation to the wanted one.

        Raises:
            ApiError: the relation is not for this kind of property, or the wanted value is of another kind.
        """
        if self.kind == OBJECT:
            raise invalid(f"{self.name} holds other properties: {operator} needs one of them")
        if operator in ("Contains", "In"):
            return self._text_test(operator, wanted)
        if operator == "Equals":
            return self._equality(wanted)
        if self.kind in (TEXT, FLAG):
            raise invalid(f"{operator} is not for {self.name}, which is {self.kind}")
        limit = self._wanted_number(wanted)
        relation = _ORDERINGS[operator]
        if self.kind != EITHER:
            return lambda value: relation(float(value), limit)
        number = self._number_like(wanted)
        return lambda value: (found := number(value)) is not None and relation(found, limit)

    def _text_test(self, operator: str, wanted: str) -> Test:
        if self.kind not in (TEXT, EITHER):
            raise invalid(f"{operator} is only for text, and {self.name} is {self.kind}")
        if operator == "Contains":
            return lambda value: wanted in value
        choices = frozenset(wanted.split(","))
        return lambda value: value in choices

    def _equality(self, wanted: str) -> Test:
        if self.kind == TEXT:
            return lambda value: bool(value == wanted)
        if self.kind == FLAG:
            if wanted.lower() not in ("true", "false"):
                raise invalid(f"{self.name} is true or false, not {wanted!r}")
            return lambda value: value is (wanted.lower() == "true")
        if self.kind == MOMENT:  # written to the second
            second = int(self._wanted_number(wanted))
            return lambda value: int(value) == second
        if self.kind == NUMBER:
            limit = self._wanted_number(wanted)
            return lambda value: float(value) == limit
        number, expected = self._number_like(wanted), _number(wanted)
        return lambda value: value == wanted or (expected is not None and number(value) == expected)

    def _wanted_number(self, wanted: str) -> float:
        if self.kind == MOMENT:
            try:
                moment = datetime.fromisoformat(wanted)
            except ValueError:
                raise invalid(f"{self.name} is a time like 2026-01-31T12:00:00, not {wanted!r}") from None
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        number = _number(wanted)
        if number is None:
            raise invalid(f"{self.name} is compared with a number, not with {wanted!r}")
        return number

    @staticmethod
    def _number_like(wanted: str) -> Callable[[str], float | None]:
        """Return how values become numbers: whole ones, if the wanted one is whole."""
        if not wanted.lstrip("+-").isdecimal():
            return _number
        return lambda value: None if (found := _number(value)) is None else float(int(found))


def find_property(name: str, inside: str = "") -> Property:
    """Return the property of a name; ``inside`` is the list that a nested filter is about.

    Raises:
        ApiError: training jobs have no such property.
    """
    if inside:
        if not name.startswith(f"{inside}."):
            raise invalid(f"{name} is not a property of {inside}, whose nested filter it is in")
        shape, _ = _walk(inside)
        kind, values = _below(shape.member, name.removeprefix(f"{inside}."), name)
        return Property(name, kind, values)
    head, _, rest = name.partition(".")
    if rest and head == "Tags":
        return Property(name, TEXT, lambda job: [t["Value"] for t in job.get("Tags", ()) if t["Key"] == rest])
    if rest and head == "Metrics":
        return Property(name, NUMBER, lambda job: _metric(job, rest))
    kind, values = _below(_root(), name, name)
    return Property(name, kind, values)


def element_of(name: str) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """Return what finds the objects in a list of a job.

    Raises:
        ApiError: training jobs have no such list.
    """
    shape, values = _walk(name)
    if shape.type_name != "list" or shape.member.type_name != "structure":
        raise invalid(f"{name} is not a list of objects, so it has no nested filters")
    return values


def _root() -> Any:
    return shape_of("sagemaker", "TrainingJob")


def _metric(job: dict[str, Any], name: str) -> list[float]:
    return [each["Value"] for each in job.get("FinalMetricDataList", ()) if each["MetricName"] == name]


def _walk(name: str) -> tuple[Any, Values]:
    """Return the shape of a property of jobs, and what finds it; a list counts as its objects."""
    shape, path = _root(), name.split(".")
    for part in path:
        shape = _member(shape, part, name)
    return shape, lambda job: _values(job, path)


def _below(shape: Any, rest: str, name: str) -> tuple[str, Values]:
    """Return the kind of a property below a shape, and what finds its values in an object of that shape."""
    path = rest.split(".")
    for place, part in enumerate(path):
        if shape.type_name == "map":  # whose keys may have dots
            kind = EITHER if path[:place] == ["HyperParameters"] else TEXT
            return kind, _entry(path[:place], ".".join(path[place:]))
        shape = _member(shape, part, name)
    if shape.type_name == "list":
        shape = shape.member
    return _KIND_OF_SHAPE.get(shape.type_name, OBJECT), lambda found: _values(found, path)


def _entry(way: list[str], key: str) -> Values:
    return lambda found: [held[key] for held in _values(found, way) if key in held]


def _member(shape: Any, part: str, name: str) -> Any:
    if shape.type_name == "list":
        shape = shape.member
    if shape.type_name != "structure" or part not in shape.members:
        raise invalid(f"training jobs have no property {name}, which is to be searched or sorted by")
    return shape.members[part]


def _values(found: Any, path: list[str]) -> list[Any]:
    """Return what lies at the end of a path, through all objects of lists on the way."""
    here = [found]
    for part in path:
        here = [each[part] for each in here if part in each]
        here = [one for each in here for one in (each if isinstance(each, list) else [each])]
    return here


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
