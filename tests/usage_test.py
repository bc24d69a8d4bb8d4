"""Help that fits a screen, and flags under the names of other tools."""

import re

import pytest
from absl import flags
from support.command_line import ROOT, run

from longctx_jax import usage

NEEDED = {
  "score": ["evaluator", "data", "workdir"],
  "eval": ["model", "data"],
  "train": ["workdir"],
  "convert": ["model"],
  "report": [],
  "data": [],
}
# Screens have more lines than that; terminals have at least 80 columns.
LINES, COLUMNS = 66, 80


@pytest.fixture(scope="module")
def screens(tmp_path_factory):
  """(script, word) -> what asking for help left."""
  folder = tmp_path_factory.mktemp("help")
  asked = [(name, word) for name in NEEDED for word in ("--help", "-h")]
  done = run(
    [[f"scripts/{name}.py", word] for name, word in asked],
    cwd=folder,
    home=folder,
  )
  return dict(zip(asked, done, strict=True))


@pytest.mark.parametrize("name", NEEDED)
def test_help_is_one_screen(screens, name):
  one = screens[name, "--help"]
  assert one.status == 0 and one.err == ""
  assert screens[name, "-h"].out == one.out
  lines = one.out.splitlines()
  assert len(lines) <= LINES
  assert all(len(line) <= COLUMNS for line in lines)


@pytest.mark.parametrize("name", NEEDED)
def test_help_says_first_what_must_be_given(screens, name):
  lines = screens[name, "--help"].out.splitlines()
  if NEEDED[name]:
    start = lines.index("needed") + 1
    assert start < lines.index("flags")
    words = [line.split()[0] for line in lines[start : lines.index("flags")]
             if line.startswith("  --")]  # fmt: skip
    assert words == [f"--{flag}" for flag in NEEDED[name]]
  text = "\n".join(lines)
  assert len(re.findall(rf"^  python scripts/{name}\.py ", text, re.M)) >= 3
  # The files that hold the documents.
  assert name == "convert" or "--data DATA" in text


@pytest.mark.parametrize("name", ["score", "eval", "train"])
def test_help_shows_defaults_of_the_config(screens, name):
  text = screens[name, "--help"].out
  block = "loss" if name == "train" else "longppl"
  assert re.search(rf"  {block}\.short_len=4096 +ids \(K\)", text)


def test_every_flag_of_a_script_is_in_its_help(screens):
  for name in NEEDED:
    source = (ROOT / "scripts" / f"{name}.py").read_text()
    for flag in re.findall(r"flags\.DEFINE_\w+\(\s*\"(\w+)\"", source):
      assert f"  --{flag}" in screens[name, "--help"].out, (name, flag)


@pytest.mark.parametrize(
  ("words", "known", "expected", "said"),
  [
    (["--model", "m"], {"evaluator"}, ["--evaluator", "m"],
     ["--model is called --evaluator here"]),
    (["--model=m=1"], {"evaluator"}, ["--evaluator=m=1"],
     ["--model is called --evaluator here"]),
    (["--model", "m"], {"model", "evaluator"}, ["--model", "m"], []),
    (["-output_path", "w"], {"workdir"}, ["--workdir", "w"],
     ["--output_path is called --workdir here"]),
    (["--modle", "m"], {"model"}, ["--modle", "m"], []),
    (["compare", "--", "model"], {"evaluator"}, ["compare", "--", "model"], []),
    (["--noverbose"], {"verbose"}, ["--noverbose"], []),
  ],
)  # fmt: skip
def test_flags_of_other_tools_get_their_name_here(words, known, expected, said):
  assert usage.translate(words, known) == (expected, said)


def test_a_flag_that_has_no_counterpart_says_what_does_the_same():
  with pytest.raises(ValueError, match="--tasks: LongPPL needs texts"):
    usage.translate(["--tasks", "ruler"], {"model"})
  assert usage.translate(["--tasks", "a"], {"tasks"}) == (["--tasks", "a"], [])


def test_comments_of_a_config_are_read_field_by_field(tmp_path):
  path = tmp_path / "c.py"
  path.write_text(
    "def get_config():\n"
    "  config = ConfigDict()\n"
    "  config.name = ''  # who\n"
    "  config.block = ConfigDict(\n"
    "    dict(\n"
    "      a=1,  # ids\n"
    "      rope=dict(theta=0.0),  # base\n"
    "      bare=(0, 0),\n"
    "    )\n"
    "  )\n"
    "  config.block.a = 2  # of a variant\n"
  )
  assert usage.comments(path) == {
    "name": ("''", "who"),
    "block.a": ("1", "ids"),
    "block.rope.theta": ("0.0", "base"),
    "block.bare": ("(0, 0)", ""),
  }


def test_a_page_wraps_long_meanings_and_marks_repeated_flags():
  values = flags.FlagValues()
  flags.DEFINE_multi_string("data", None, "word " * 30, flag_values=values)
  flags.DEFINE_enum("kind", "a", ["a", "b"], "which", flag_values=values)
  text = usage.page(
    "Does it.\n\npython scripts/x.py --data a \\\n  --kind b\n\nMore.\n",
    groups={"flags": [values["data"], values["kind"]]},
    needs=("data",),
  )
  lines = text.splitlines()
  assert lines[:2] == ["Does it.", "More."]
  assert all(len(line) <= COLUMNS for line in lines)
  assert "may be given again" in text
  assert re.search(r"--kind KIND +which: a, b \[a\]", text)
  assert lines.index("needed") < lines.index("flags")
  at = lines.index("examples")
  assert lines[at + 1 : at + 3] == [
    "  python scripts/x.py --data a \\", "    --kind b"
  ]  # fmt: skip
