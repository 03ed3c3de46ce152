"""Environment variables as typed values; errors name the variable."""

import pytest

from shardwise.processes.variables import Variables

VARIABLES = Variables({"COUNT": " 4 ", "EMPTY": "", "IDS": "0,2", "LIMIT": "1.5", "WORD": "four", "OTHER": "5"})


def test_values_have_their_types():
    assert (VARIABLES.text("WORD"), VARIABLES.integer("COUNT"), VARIABLES.integers("IDS")) == ("four", 4, (0, 2))
    assert VARIABLES.seconds("LIMIT") == 1.5
    assert VARIABLES.required_integer("COUNT", "WORD", minimum=4) == 4


def test_an_empty_variable_is_unset():
    assert "EMPTY" not in VARIABLES and "COUNT" in VARIABLES
    assert VARIABLES.text("EMPTY") is VARIABLES.integer("EMPTY") is VARIABLES.seconds("EMPTY") is None


def test_errors_name_the_variable():
    with pytest.raises(ValueError, match="WORD=four: 'four' is not an integer of at least 0"):
        VARIABLES.integer("WORD")
    with pytest.raises(ValueError, match="COUNT=4: '4' is not an integer of at least 5"):
        VARIABLES.integer("COUNT", minimum=5)
    with pytest.raises(ValueError, match="EMPTY is not set, but COUNT=4 is: set both or neither"):
        VARIABLES.required_text("EMPTY", "COUNT")
    with pytest.raises(ValueError, match="COUNT=4 contradicts OTHER=5: unset the wrong one"):
        VARIABLES.check_equal("COUNT", "OTHER")
