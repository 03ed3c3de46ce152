"""The laws fail with the values that they compared, as tests do."""

import pytest

pytest.register_assert_rewrite("tests.compiler.ops.laws")
