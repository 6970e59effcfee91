"""Assignments that grade themselves: what a student's notebook imports.

``sheet = assignment("averaging", STUDENT)`` gives the parameters of this student
(``sheet.parameters``) and the visible checks (``sheet.check("question", function)``). The teacher's
side is the command ``course assignments``.
"""

from course.assignments.student import Sheet, assignment

__all__ = ["Sheet", "assignment"]
