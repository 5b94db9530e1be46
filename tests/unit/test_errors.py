import inspect

import pytest

from umadvise import errors


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("UmadviseError", 1),
        ("StateError", 1),
        ("BudgetError", 1),
        ("DeviceUnavailableError", 1),
        ("HooksUnavailableError", 1),
        ("FormatError", 1),
        ("NativeError", 1),
        ("UsageError", 2),
        ("InvalidSizeError", 2),
        ("InvalidAdviceError", 2),
        ("PolicyError", 2),
        ("CheckFailedError", 3),
    ],
)
def test_exit_codes(name: str, exit_code: int) -> None:
    assert getattr(errors, name).exit_code == exit_code


def test_every_exception_is_under_one_root() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert all(issubclass(class_, errors.UmadviseError) for class_ in classes)


def test_unknown_advice_names_the_word_and_the_choices() -> None:
    error = errors.InvalidAdviceError("fast", ("noadvise", "prefetch"))
    assert str(error) == "unknown advice 'fast': expected one of noadvise, prefetch"


def test_a_missing_device_names_both_ways_out() -> None:
    message = str(errors.DeviceUnavailableError("libcuda.so.1 is not there"))
    assert "libcuda.so.1 is not there" in message
    assert "a GPU with its driver" in message
    assert 'device="emulated"' in message


def test_native_errors_keep_code_and_message() -> None:
    error = errors.NativeError(3, "out of device memory")
    assert (error.code, error.message, str(error)) == (3, "out of device memory", "out of device memory")
