"""Warnings at the user's line."""

import subprocess
import sys
import warnings

import pytest

from shardwise.base.call_site import PACKAGE, CallSite, UserLine, format_line, user_frame, warn_user


def test_user_frame_is_this_one():
    frame = user_frame()
    assert frame is not None and frame.f_code.co_name == "test_user_frame_is_this_one"


def test_warning_has_the_line_of_the_caller():
    with pytest.warns(UserWarning, match="careful") as caught:
        warn_user("careful")
    line = test_warning_has_the_line_of_the_caller.__code__.co_firstlineno + 2
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_warning_is_shown_once_per_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_user("again")
    assert len(caught) == 1


def test_a_package_that_is_imported_through_a_link_is_no_users_file(tmp_path):
    (tmp_path / "shardwise").symlink_to(PACKAGE)
    program = tmp_path / "program.py"
    program.write_text("from shardwise.base import call_site\nprint(call_site.is_user_file(call_site.__file__))\n")
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


CELL = "/tmp/ipykernel_1/3.py"


def test_a_line_of_a_file_has_the_name_of_the_file():
    assert format_line("/home/me/train.py", 41) == "train.py:41"


def test_a_line_of_a_notebook_has_the_name_of_its_cell(ipython):
    assert format_line(CELL, 2) == "Cell In[3], line 2"
    assert format_line("/home/me/train.py", 41) == "train.py:41"
    assert str(CallSite(compile("\nx = 1", CELL, "exec"), 2)) == "Cell In[3], line 2"


def test_a_warning_at_a_line_of_a_notebook_has_the_name_of_its_cell(ipython):
    with pytest.warns(UserWarning, match="careful") as caught:
        UserLine(CELL, 2, "__main__", {}).warn("careful")
    assert (caught[0].filename, caught[0].lineno) == ("Cell In[3]", 2)
