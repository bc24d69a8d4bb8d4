import pytest
from support.checks import refuses

from longctx_jax.runtime import foreign_files

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "f.json is empty"),
    ("nothing", "f.json cannot be read: Expecting value"),
    ('{"a": 1', "f.json cannot be read: Expecting ',' delimiter"),
    (POINTER, "f.json is a git-lfs pointer.*git lfs pull"),
    ("[1]", "f.json holds a list, not an object"),
    # Readers differ in which of the two they take.
    ('{"a": 1, "b": 2, "a": 3}', "f.json cannot be read: states a twice"),
  ],
)
def test_what_is_no_object_is_named(tmp_path, text, message):
  path = tmp_path / "f.json"
  path.write_text(text)
  with refuses(message):
    foreign_files.read_json(path)


def test_an_object_is_read(tmp_path):
  path = tmp_path / "f.json"
  path.write_text('{"a": {"b": 1}, "c": {"b": 2}}')
  assert foreign_files.read_json(path) == {"a": {"b": 1}, "c": {"b": 2}}
