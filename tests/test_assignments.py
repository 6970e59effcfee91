"""Every assignment: whole, solvable for everybody, and no wrong answer gets its points.

No process is started here: the loop through the box is tests/test_grading.py.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re

import pytest
import torch

from course.assignments import assignment
from course.assignments.catalogue import assignments, find_assignment, parameters_of
from course.assignments.drawing import drawn
from course.assignments.guide import guide
from course.assignments.question import Draw, marked
from course.assignments.questions import averaging, qkv_block, recall, winograd_probes
from course.assignments.solved import kill_table, namespace, solution_marks
from course.assignments.source import (
    BEGIN,
    END,
    FOLDER,
    faults,
    grade_id_of,
    mark_scheme,
    names,
    nbgrader_of,
    read_source,
    region,
    release,
    solution,
    text_of,
    without_solution,
)
from course.checks import Wrong, run_check
from tests.kill_table import record_kill

NAMES = names()
QUESTIONS = [
    pytest.param(name, question.name, id=f"{name}: {question.name}")
    for name in NAMES
    for question in assignments()[name].questions
]
STUDENTS = (
    *("Ada Lovelace", "Alan Turing", "Grace Hopper", "Emmy Noether", "Ünsal Öz", "Zoë Ångström"),
    *("李华", "山田太郎", "Łukasz", "O'Brien", "José María", "Nguyễn Văn A", "s1234567", "a"),
    *("Ada  lovelace II", "Müller-Lüdenscheidt", "Ибрагим", "student@example.org", "x_y.z", "Ṛta"),
)


def test_every_module_of_questions_has_its_source():
    assert list(assignments()) == NAMES


def test_assignments_are_in_the_order_of_the_course():
    in_order = ["averaging", "qkv_block", "linear_forms", "recall", "winograd_probes"]
    assert list(assignments()) == in_order
    assert [one.number for one in assignments().values()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_whole(name):
    assert faults(read_source(name), find_assignment(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_source_has_four_to_six_questions_of_each_kind(name):
    source, asked = read_source(name), find_assignment(name).questions
    assert 4 <= len(asked) + len(source.written) <= 6 and source.written
    drawing = [q for q in asked if q.function.startswith("draw_")]
    assert drawing, "one question is a plot: its function draws on an Axes"


def _minutes(source):
    texts = (text_of(c) for c in source.cells)
    return sum(int(m) for text in texts for m in re.findall(r"\*\w+, (\d+) minutes", text))


@pytest.mark.parametrize("name", NAMES)
def test_the_teachers_table_is_that_of_the_sources(name):
    source = read_source(name)
    asked = [q.name for q in find_assignment(name).questions] + source.written
    points = sum(map(source.points, asked))
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    row = rf"^\| `{name}` \| [^|]+ \| {points:g} \| {_minutes(source)} \| [^|]+ \|$"
    assert re.search(row, readme, re.MULTILINE)
    assert f": {points:g} points, about " in text_of(source.cells[0])
    week, days = readme.partition("*Six weeks*")[2].partition("*Two days*")[::2]
    assert f"`{name}`" in week and f"`{name}`" in days.partition("## ")[0]


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_solutions_get_full_marks_whoever_asks(name, student):
    marks = solution_marks(read_source(name), student)
    assert {question: mark.stage for question, mark in marks.items()} == dict.fromkeys(
        marks, "full"
    ), marks


@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_wrong_answers_lose_points(name, question, record_property):
    asked = find_assignment(name).question(question)
    table = dict(kill_table(read_source(name), asked, STUDENTS[0]))
    assert len(table) >= 10
    for label, mark in table.items():
        record_kill(record_property, f"{name}: {question}", label, mark.broken or None)
    assert {label: mark.share for label, mark in table.items() if mark.share == 1} == {}


@pytest.mark.parametrize("student", STUDENTS[1:4])
@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_wrong_answers_lose_points_with_other_parameters(name, question, student):
    asked = find_assignment(name).question(question)
    table = dict(kill_table(read_source(name), asked, student))
    assert {label: mark.share for label, mark in table.items() if mark.share == 1} == {}


def _made_up(change, function):
    """What the solution returns, its entries replaced; or nothing drawn."""

    def answer(*arguments):
        found = function(*arguments)
        several = found if isinstance(found, tuple) else (found,)
        changed = [change(x, arguments) if isinstance(x, torch.Tensor) else 1 for x in several]
        return tuple(changed) if isinstance(found, tuple) else changed[0]

    return answer


TRIVIAL = {
    "zeros": lambda x, _: torch.zeros_like(x),
    "ones": lambda x, _: torch.ones_like(x),
    "noise of the right shape": lambda x, _: torch.randn(x.shape).to(x.dtype),
    "the first argument": lambda x, arguments: arguments[0],
}


@pytest.mark.parametrize("trivial", TRIVIAL)
@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_trivial_answers_get_nothing(name, question, trivial):
    source, asked = read_source(name), find_assignment(name).question(question)
    right = namespace(source, "Ada")[asked.function]
    mine = parameters_of(find_assignment(name), "Ada")
    made_up = _made_up(TRIVIAL[trivial], right)
    function = (lambda ax, *_: None) if asked.function.startswith("draw_") else made_up
    assert marked(asked, function, Draw("trivial", question), mine).share == 0


# The student's version


@pytest.mark.parametrize("name", NAMES)
def test_the_students_notebook_runs_and_says_what_is_not_written(name, capsys):
    source, asked = read_source(name), find_assignment(name).questions
    cells = release(source)["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            tree = ast.parse(cell["source"])
            exec(compile(tree, "<cell>", "exec"), names)
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"○ {q.name}: not written yet" for q in asked]
    assert said.err == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_students_notebook_holds_no_solution(name):
    source = read_source(name)
    given = json.dumps(release(source), ensure_ascii=False)
    assert "SOLUTION" not in given and "Mark scheme" not in given
    for cell in source.cells:
        for line in region(text_of(cell)).splitlines():
            if len(line.strip()) > 20:
                assert json.dumps(line.strip(), ensure_ascii=False)[1:-1] not in given, line


@pytest.mark.parametrize("name", NAMES)
def test_checks_are_locked_and_answers_are_not(name):
    for cell in release(read_source(name))["cells"]:
        own = nbgrader_of(cell)
        if own.get("grade") and not own.get("solution"):
            assert cell["metadata"]["editable"] is False and cell["metadata"]["deletable"] is False
        elif own.get("solution"):
            assert "editable" not in cell["metadata"]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_notebook_passes_its_own_checks(name, capsys):
    names: dict = {}
    for cell in solution(read_source(name))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], "<cell>", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(find_assignment(name).questions)
    assert all(re.fullmatch(r"✓ [\w-]+: \d+ propert(y holds|ies hold)", line) for line in lines)


def test_a_stub_is_as_far_in_as_the_solution():
    text = f"def f(x):\n    if x:\n        {BEGIN}\n        y = 1\n        {END}\n    return 2"
    assert without_solution(text, "# here\npass") == (
        "def f(x):\n    if x:\n        # here\n        pass\n    return 2"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(schema_version=2), "expected nbgrader's schema_version 3"),
        (lambda c: c.update(locked=False), "expected grade and locked, and no solution"),
        (lambda c: c.update(grade_id="other"), "expected cells with the grade_id"),
    ],
)
def test_faults_are_found_in_a_check_cell(change, said):
    source = read_source("averaging")
    change(nbgrader_of(source.cell("fading-mean-check")))
    assert said in "; ".join(faults(source, find_assignment("averaging")))


WRITTEN_HINT = (
    "<details><summary>Hint 1</summary>\n\nWhich numbers go into the denominator of the softmax?"
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("### END SOLUTION", "", "do not pair"),
        ("<details><summary>Hint 2</summary>", "", "a second hint is missing"),
        ("*Easy, 15 minutes", "*15 minutes", "difficulty and minutes is missing"),
        ("<details><summary>If you read", "<details><summary>With", "help for an error"),
        ("def fading_mean(", "def faded(", "the student does not see 'def fading_mean('"),
        ("# Assignment 1 · ", "# Assignment 2 · ", "begin with '# Assignment 1 · …'"),
        (WRITTEN_HINT, "", "leak-in-words: a first hint is missing"),
        ("- (1 point) says that", "- says that", "points do not add up"),
    ],
)
def test_faults_are_found_in_the_text(old, new, said):
    source = read_source("averaging")
    changed = [c for c in source.cells if old in text_of(c)]
    assert changed
    for cell in changed:
        cell["source"] = text_of(cell).replace(old, new)
    assert said in "; ".join(faults(source, find_assignment("averaging")))


# Parameters


def test_parameters_are_the_same_for_ever():
    """Students keep their numbers when the course, Python or PyTorch is updated."""
    mine = parameters_of(find_assignment("averaging"), "Ada Lovelace")
    assert mine == {"keep": 0.71, "window": 3, "boost": 2.5, "order": [2, 0, 3, 1], "words": 6}


@pytest.mark.parametrize("typed", ["ada lovelace", " Ada  LOVELACE ", "Ada Lovelace"])
def test_parameters_do_not_depend_on_how_the_name_is_typed(typed):
    one = find_assignment("averaging")
    assert parameters_of(one, typed) == parameters_of(one, "Ada Lovelace")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_plain_and_differ(name):
    all_of_them = [parameters_of(find_assignment(name), student) for student in STUDENTS]
    texts = [json.dumps(dict(mine)) for mine in all_of_them]
    assert [json.loads(text) for text in texts] == all_of_them
    assert len(set(texts)) >= 15


@pytest.mark.parametrize("student", ["", "  ", None, 3])
def test_a_name_is_needed(student):
    with pytest.raises(ValueError, match="student: expected a name"):
        assignment("averaging", student)


def test_an_unknown_assignment():
    with pytest.raises(ValueError, match="assignment: expected one of averaging"):
        assignment("avraging", "Ada")


def test_the_box_decides_who_it_is(monkeypatch):
    told = {"assignment": "averaging", "student": "Bob", "parameters": {"keep": 0.1}}
    monkeypatch.setenv("COURSE_ASSIGNMENT_BOX", json.dumps(told))
    sheet = assignment("averaging", "Ada")
    assert sheet.student == "Bob" and sheet.parameters == {"keep": 0.1}
    sheet.check("fading-mean", None)  # is left to the teacher's program


# Under nbgrader


def test_a_failing_check_is_an_error_under_nbgrader(monkeypatch, capsys):
    sheet = assignment("averaging", "Ada")
    sheet.check("fading-mean", lambda x: x)
    assert capsys.readouterr().out.startswith("✗ fading-mean, values")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(AssertionError, match="✗ fading-mean, values"):
        sheet.check("fading-mean", lambda x: x)


# The questions of averaging


@pytest.mark.parametrize(
    ("name", "cell", "programs"),
    [
        ("averaging", "programs", averaging.PROGRAMS),
        ("qkv_block", "blocks", qkv_block.BLOCKS),
    ],
)
def test_the_programs_of_the_notebook_are_those_of_the_referee(name, cell, programs):
    text = text_of(read_source(name).cell(cell))
    for program in programs:
        assert inspect.getsource(program).strip() in text


def _names_of(name, student):
    """The parameters of a student, and the names of the notebook's cells."""
    source = read_source(name)
    return parameters_of(find_assignment(name), student), namespace(source, student)


@pytest.mark.parametrize("student", STUDENTS[:4])
def test_the_part_of_a_block_is_that_of_the_referee(student):
    _, told = _names_of("qkv_block", student)
    draw = Draw("part", student)
    n, allowed = draw.normal(5, 3), torch.ones(5, 5).tril().bool()
    mine = told["attention_part"](n, allowed, 0.3)
    torch.testing.assert_close(mine, qkv_block.attention_part(n, allowed, 0.3))


@pytest.mark.parametrize("student", STUDENTS[:4])
def test_the_memories_of_the_notebook_are_those_of_the_referee(student):
    mine, told = _names_of("recall", student)
    draw = Draw("memories", student)
    K, words = draw.normal(6, 3), torch.tensor([draw.whole(0, 3) for _ in range(6)])
    for rule in recall.RULES:
        expected = recall.state_after(rule, K, words, mine["decay"])
        torch.testing.assert_close(told["state_after"](rule, K, words), expected)


@pytest.mark.parametrize("student", STUDENTS[:4])
def test_the_readers_of_the_notebook_are_those_of_the_referee(student):
    mine, told = _names_of("winograd_probes", student)
    for words in ("ANIMALS", "PLACES", "OF_CROSSER", "OF_CROSSED"):
        assert told[words] == getattr(winograd_probes, words)
    nouns = (*winograd_probes.ANIMALS, *winograd_probes.PLACES)
    for one in itertools.product(nouns, nouns, told["OF_CROSSER"] + told["OF_CROSSED"]):
        expected = winograd_probes.said_by_rules(one, mine["known"])
        assert {rule: told[rule](*one) for rule in expected} == expected


@pytest.mark.parametrize("student", STUDENTS[:4])
def test_the_rest_of_the_model_and_the_heads_are_those_of_the_referee(student):
    mine, told = _names_of("winograd_probes", student)
    draw = Draw("heads", student)
    circuit = *(draw.normal(4, 3), *(draw.normal(3, 3) for _ in range(3))), draw.normal(3)
    expected = winograd_probes.margin(*circuit, mine["scale"])
    torch.testing.assert_close(told["margin"](*circuit), expected)
    scores, values = draw.normal(2, 5), draw.normal(2, 5)
    assert told["output"](scores, values) == winograd_probes.output(scores, values)
    for heads in ([0], [1], [0, 1]):
        gone = winograd_probes.without_look(scores, heads, 2)
        assert torch.equal(told["without"](scores, heads, 2), gone)


def test_the_mark_scheme_is_read():
    scheme = mark_scheme(read_source("averaging"), "leak-in-words")
    assert [points for points, _ in scheme] == [1, 1, 1, 1]


def test_a_picture_is_read():
    def draw(ax, n):
        ax.plot([1, 2, 4], [n, n, n], label="flat")
        ax.set(xlabel="a", ylabel="b", yscale="log")

    picture = drawn(draw, 3)
    assert picture.curves[0].y.tolist() == [3, 3, 3] and picture.curves[0].label == "flat"
    assert (picture.xlabel, picture.ylabel, picture.xscale) == ("a", "b", "linear")
    assert picture.yscale == "log" and not picture.legend
    with pytest.raises(Wrong, match="stops with ZeroDivisionError"):
        drawn(lambda ax, n: 1 / 0, 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_has_every_solution_and_every_wrong_answer(name):
    source, one = read_source(name), find_assignment(name)
    text = guide(source)
    assert "SURVIVED" not in text
    for question in one.questions:
        assert region(text_of(source.cell(question.name))) in text
        assert all(f"| {label} |" in text for label in question.wrong)
    for written in source.written:
        assert all(words in text for _, words in mark_scheme(source, written))


def test_draws_are_the_same_for_one_seed_and_differ_for_another():
    def numbers(*seed):
        draw = Draw(*seed)
        return [draw.whole(0, 10**9), draw.sizes(3, 1, 99), draw.normal(4).tolist()]

    assert numbers("a", 1) == numbers("a", 1) != numbers("a", 2)
    assert len(set(Draw("b").sizes(5, 1, 6))) == 5


def test_visible_properties_must_exist():
    from dataclasses import replace

    asked = replace(averaging.FADING_MEAN, visible=("shape", "valeus"))
    mine = parameters_of(averaging.ASSIGNMENT, "Ada")
    with pytest.raises(ValueError, match="visible: expected properties of fading-mean"):
        asked.stages(Draw("x"), mine)


def test_stages_hold_all_properties_once():
    mine = parameters_of(averaging.ASSIGNMENT, "Ada")
    for asked in averaging.ASSIGNMENT.questions:
        visible, hidden = asked.stages(Draw("x"), mine)
        every = list(asked.properties(Draw("x"), mine))
        assert sorted([*visible.properties, *hidden.properties]) == sorted(every)
        assert run_check(visible, lambda *a: None).passed is False


@pytest.mark.parametrize("name", NAMES)
def test_grade_ids_are_words_of_a_file_name(name):
    ids = [grade_id_of(c) for c in read_source(name).cells if grade_id_of(c)]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", i) for i in ids)
