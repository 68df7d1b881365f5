"""The 16 rules: what each forbids is found, and what the paper shows is allowed."""

import pytest

from powerinfer.orchestra.actions import ProtocolError, Turn, parse_elements
from powerinfer.orchestra.rules import RULES, violations

OFFERS = {"haiku": ("direct_answer", "read_document"), "sonnet": ("read_document",)}
PLAN = '<plan round="1">\n  <subtask id="1" depends_on="">x</subtask>\n</plan>\n'
ROUTE = '<route round="1" subtask="1" model="haiku" skill="direct_answer">q</route>'
OBS = '<obs subtask="1">r</obs>'
ANSWER = "<final_answer>a</final_answer>"
PASS = '<verify round="1" status="pass">ok</verify>'
REPAIR = '<verify round="1" status="repair_needed" target="1">no</verify>'
PLAN_2 = '<plan round="2"><subtask id="2" depends_on="1">y</subtask></plan>'
ROUTE_2 = '<route round="2" subtask="2" model="sonnet" skill="read_document">q</route>'
OBS_2 = '<obs subtask="2">r</obs>'
PASS_2 = '<verify round="2" status="pass">ok</verify>'
PLANNED = (PLAN + ROUTE, OBS, PASS + ANSWER)
REPAIRED = (PLAN + ROUTE, OBS, REPAIR + PLAN_2 + ROUTE_2, OBS_2, PASS_2 + ANSWER)


def turns(*texts: str) -> list[Turn]:
    """Turns by what they begin with: observations are the tools'."""
    return [
        Turn("tool" if each.startswith("<obs") else "assistant", parse_elements(each))
        for each in texts
    ]


@pytest.mark.parametrize("texts", [(ANSWER,), PLANNED, REPAIRED], ids=["lazy", "plan", "repair"])
def test_valid(texts: tuple[str, ...]) -> None:
    assert violations(turns(*texts), OFFERS) == ()


def many(count: int) -> tuple[str, ...]:
    """A plan of so many subtasks, done."""
    numbers = range(1, count + 1)
    plan = "".join(f'<subtask id="{each}" depends_on="">x</subtask>' for each in numbers)
    routes = "".join(ROUTE.replace('subtask="1"', f'subtask="{each}"') for each in numbers)
    observations = "".join(OBS.replace("1", str(each)) for each in numbers)
    return f'<plan round="1">{plan}</plan>{routes}', observations, PASS + ANSWER


def rounds(count: int) -> tuple[str, ...]:
    """So many rounds of one subtask each."""
    texts: list[str] = []
    before = ""
    for each in range(1, count + 1):
        plan = f'<plan round="{each}"><subtask id="{each}" depends_on="">x</subtask></plan>'
        route = ROUTE.replace('"1"', f'"{each}"')
        texts += [before + plan + route, OBS.replace("1", str(each))]
        before = REPAIR.replace('"1"', f'"{each}"')
    return (*texts, PASS.replace("1", str(count)) + ANSWER)


BROKEN: dict[str, tuple[str, ...]] = {
    "other_than_one_answer_at_the_end": (PLAN + ROUTE, OBS, PASS),
    "begin_without_answer_or_plan": (PLAN,),
    "round_out_of_order": (PLAN.replace("1", "2", 1) + ROUTE, OBS, PASS + ANSWER),
    "subtask_id_not_rising": (
        *REPAIRED[:2],
        REPAIRED[2].replace('id="2"', 'id="1"'),
        *REPAIRED[3:],
    ),
    "undeclared_dependency": (PLAN.replace('on=""', 'on="1"') + ROUTE, OBS, PASS + ANSWER),
    "route_without_one_observation": (PLAN + ROUTE, OBS + OBS, PASS + ANSWER),
    "route_in_another_round": (PLAN + ROUTE.replace("1", "2", 1), OBS, PASS + ANSWER),
    "verdict_not_after_observations": (PLAN + ROUTE, OBS, ANSWER),
    "pass_without_answer": (PLAN + ROUTE, OBS, PASS + PLAN_2 + ROUTE_2, OBS_2, PASS_2 + ANSWER),
    "repair_without_plan": (PLAN + ROUTE, OBS, REPAIR + ANSWER),
    "repair_of_unknown_subtask": (
        *REPAIRED[:2],
        REPAIRED[2].replace('target="1"', 'target="1,7"'),
        *REPAIRED[3:],
    ),
    "unknown_worker_or_primitive": (PLAN + ROUTE.replace("haiku", "sonnet"), OBS, PASS + ANSWER),
    "more_than_8_routes": many(9),
    "more_than_3_rounds": rounds(4),
}


def test_limits_themselves_are_allowed() -> None:
    assert violations(turns(*many(8)), OFFERS) == ()
    assert violations(turns(*rounds(3)), OFFERS) == ()


@pytest.mark.parametrize("rule", BROKEN)
def test_broken(rule: str) -> None:
    assert rule in {each.rule for each in violations(turns(*BROKEN[rule]), OFFERS)}


def test_roles() -> None:
    wrong = [Turn("assistant", parse_elements(PLAN + ROUTE + OBS + PASS + ANSWER))]
    assert "observation_by_assistant" in {each.rule for each in violations(wrong, OFFERS)}
    wrong = [Turn("tool", parse_elements(ANSWER))]
    assert "action_by_tool" in {each.rule for each in violations(wrong, OFFERS)}
    assert set(RULES) == {*BROKEN, "observation_by_assistant", "action_by_tool"}
    assert len(RULES) == 16


def test_an_empty_trajectory_breaks_two() -> None:
    found = [each.rule for each in violations([], OFFERS)]
    assert found == ["other_than_one_answer_at_the_end", "begin_without_answer_or_plan"]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        PLAN + "hello",
        '<plan round="1">hello</plan>',
        '<verify round="1" status="repair_needed">x</verify>',
        '<verify round="1" status="pass" target="1">x</verify>',
        '<obs subtask="99999">x</obs>',
    ],
)
def test_what_is_no_element(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_elements(text)
