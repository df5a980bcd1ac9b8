"""Search: training jobs by their properties.

What an expression means: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SearchExpression.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.schedulers.aws.sagemaker_local.endpoint import validation
from trainyard.schedulers.aws.sagemaker_local.endpoint.answers import (
    describe,
    jobs_of,
    page_of_jobs,
    tag_list,
)
from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import invalid
from trainyard.schedulers.aws.sagemaker_local.endpoint.properties import OBJECT, Property, element_of, find
from trainyard.schedulers.aws.service_model import shape_of
from trainyard.schedulers.exec.process.recovery import current_state

RESOURCE = "TrainingJob"
DEFAULT_PAGE = 100
MOST_CONDITIONS = 50
MOST_OF_EXPRESSION = 20

Job = dict[str, Any]
Condition = Callable[[Job], bool]


def search(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """Answer a Search request, from the jobs of a region.

    Raises:
        ApiError: the expression makes no sense.
    """
    validation.check("Search", params)
    if params["Resource"] != RESOURCE:
        raise invalid(f"Search finds resources of type {RESOURCE} on this machine, not {params['Resource']}")
    expression = params.get("SearchExpression")
    if expression is None:
        is_wanted: Condition = lambda job: True  # noqa: E731
    else:
        _check_limits(expression)
        is_wanted = _expression(expression)
    order = find(params.get("SortBy", "LastModifiedTime"))
    if order.kind == OBJECT:
        raise invalid(f"{order.name} has no values to sort by")
    # no other account shows its jobs to this machine
    everything = [] if params.get("CrossAccountFilterOption") == "CrossAccount" else _jobs(region)
    jobs = [job for job in everything if is_wanted(job)]
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
    found = find(name, inside)
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
