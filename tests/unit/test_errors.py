from penstock.clients.jetstream.calls import ApiError
from penstock.errors import OptionError


def test_a_sentence_can_be_added_to_any_error() -> None:
    for error in (OptionError("It is wrong."), ApiError(10059, "It is gone.")):
        error.add("Before that, all was well.")
        assert str(error).endswith(". Before that, all was well.")
