import pickle
import traceback

import penstock
from penstock.clients.jetstream.calls import ApiError
from penstock.errors import OptionError


def test_a_sentence_can_be_added_to_any_error() -> None:
    for error in (OptionError("It is wrong."), ApiError(10059, "It is gone.")):
        error.add("Before that, all was well.")
        assert str(error).endswith(". Before that, all was well.")


def test_an_error_is_printed_with_a_short_name_and_can_be_sent() -> None:
    error = penstock.OptionError("It is wrong.")
    assert traceback.format_exception_only(error) == ["penstock.OptionError: It is wrong.\n"]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (OptionError, "It is wrong.")
