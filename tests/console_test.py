"""The command `longctx`, and that an installed package has all it runs."""

import subprocess
import sys
import tomllib

import pytest
from support.command_line import ROOT, environment

import longctx_jax
from longctx_jax import commands, console


def longctx(*words, cwd):
  program = "from longctx_jax import console; console.main()"
  return subprocess.run(
    [sys.executable, "-c", program, *words],
    cwd=cwd,
    env=environment(cwd),
    capture_output=True,
    text=True,
    check=False,
  )


def test_verbs_are_the_scripts(capsys, monkeypatch):
  names = {path.stem for path in (ROOT / "scripts").glob("*.py")}
  assert set(console.scripts()) == names
  monkeypatch.setattr(sys, "argv", ["longctx"])
  console.main()
  out = capsys.readouterr().out
  for name in names:
    assert f"\n  {name} " in out
  assert "Scores a corpus with an evaluator" in out


def test_a_verb_runs_its_script(tmp_path):
  done = longctx("report", "compare", "w", cwd=tmp_path)
  assert done.returncode == 2
  assert done.stderr.startswith("error: no results in w/results")
  helped = longctx("score", "--help", cwd=tmp_path)
  assert helped.returncode == 0 and "--evaluator EVALUATOR" in helped.stdout


@pytest.mark.parametrize(
  ("word", "said"),
  [("scroe", "Did you mean: score?"), ("xyz", "longctx has no verb 'xyz'. V")],
)
def test_a_verb_that_is_not_there(word, said, capsys, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["longctx", word])
  with pytest.raises(SystemExit) as stopped:
    console.main()
  assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_the_version_is_the_packages(capsys, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["longctx", "--version"])
  console.main()
  assert capsys.readouterr().out == f"longctx_jax {longctx_jax.__version__}\n"


def test_the_wheel_holds_all_packages_and_what_they_run():
  """Listed by name, since configs/ and scripts/ are mapped into it."""
  settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
  tools = settings["tool"]["setuptools"]
  folders = {
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "longctx_jax").rglob("*.py")
  }
  mapped = {f"longctx_jax.{name}" for name in ("configs", "scripts")}
  assert set(tools["packages"]) == folders | mapped
  assert tools["package-dir"] == {
    name: name.rpartition(".")[2] for name in mapped
  }
  assert settings["project"]["scripts"]["longctx"] == "longctx_jax.console:main"


def test_a_shipped_config_is_found_from_any_folder(tmp_path):
  done = longctx(
    "eval", "--config", "configs/longppl.py:k1024", "--model", "m",
    cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 2 and "no data given" in done.stderr
  assert commands.folder("configs") == ROOT / "configs"
