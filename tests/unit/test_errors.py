import pickle
import traceback

import pytest
import typer

import penstock
from penstock.cli.sentences import sentences
from penstock.clients.jetstream.calls import ApiError
from penstock.errors import ConnectError, OptionError


def test_a_sentence_can_be_added_to_any_error() -> None:
    for error in (OptionError("It is wrong."), ApiError(10059, "It is gone.")):
        error.add("Before that, all was well.")
        assert str(error).endswith(". Before that, all was well.")


def test_an_error_is_printed_with_a_short_name_and_can_be_sent() -> None:
    error = penstock.OptionError("It is wrong.")
    assert traceback.format_exception_only(error) == ["penstock.OptionError: It is wrong.\n"]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (OptionError, "It is wrong.")


def test_a_terminal_does_not_act_on_what_an_error_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), sentences():
        raise ConnectError("JetStream refuses: \x1b[31m\x1b]0;title\x07 no\nmore")
    assert capsys.readouterr().err == "penstock: JetStream refuses:  [31m ]0;title  no\nmore\n"
