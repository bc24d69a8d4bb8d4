"""The launch lines of docs/tpu.md, read by what they are for.

Our flags by our scripts; the JobSet file by its schema; xpk's lines by its own
command line, where it is installed (`make test-launch`).
"""

import argparse
import json
import re
import shlex

import jsonschema
import pytest
import yaml
from support.checks import refuses
from support.command_line import ROOT, run

from longctx_jax.runtime import chips

PAGE = (ROOT / "docs" / "tpu.md").read_text()
SCHEMA = json.loads(
  (ROOT / "tests" / "support" / "jobset_schema.json").read_text()
)
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.M | re.S)
# What a person puts in the place of these.
FILLED = {"ZONE": "us-east5-a", "REPOSITORY": "https://host/it", "IMAGE": "i"}


def lines_of(tool):
  """Its command lines; a quoted word may go on in the next line."""
  return [
    shlex.split(line)
    for block in BLOCKS
    if block.startswith(f"{tool} ")
    for line in re.split(rf"^(?={tool} )", block, flags=re.M)
    if line
  ]


def scripts():
  """[script, argument, ...] of each of our commands."""
  text = re.sub(r"\\\n\s*", " ", "\n".join(BLOCKS))
  found = re.findall(r"python (scripts/\w+\.py [^\n]*)", text)
  return [_known_so_far(shlex.split(line)) for line in found]


def _known_so_far(command):
  """Without --distributed where the script does not join processes."""
  if "distributed" in (ROOT / command[0]).read_text():
    return command
  return [word for word in command if word not in ("--distributed", "auto")]


def jobset():
  (block,) = (block for block in BLOCKS if block.startswith("apiVersion"))
  return yaml.safe_load(block)


def test_our_scripts_accept_every_line(tmp_path):
  commands = scripts()
  assert {command[0] for command in commands} == {
    f"scripts/{name}.py" for name in ("plan", "train", "score")
  }
  # absl parses all flags, ours check them, and nothing runs.
  done = run(
    [[*command, "--only_check_args"] for command in commands],
    cwd=tmp_path,
    home=tmp_path,
  )
  assert [one.status for one in done] == [0] * len(commands), [
    one.err for one in done
  ]


def test_a_flag_that_there_is_not_would_be_seen(tmp_path):
  (one,) = run(
    [[*scripts()[0], "--topolgy=v5e:2x4", "--only_check_args"]],
    cwd=tmp_path,
    home=tmp_path,
  )
  assert one.status == 2 and "topolgy" in one.err


def test_the_jobset_is_one():
  jsonschema.Draft202012Validator(SCHEMA).validate(jobset())


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("parallelism: 2", "parallelism: two", "is not of type 'integer'"),
    ("nodeSelector", "nodeSelectors", "'nodeSelectors' was unexpected"),
    ("replicatedJobs", "replicatedJob", "'replicatedJob' was unexpected"),
    ("mountPath", "path", "'mountPath' is a required|'path' was"),
    ("claimName: shared", "readOnly: true", "'claimName' is a required"),
  ],
)
def test_a_jobset_with_a_fault_would_be_seen(old, new, message):
  text = yaml.safe_dump(jobset())
  assert old in text
  with refuses(message, jsonschema.ValidationError):
    jsonschema.Draft202012Validator(SCHEMA).validate(
      yaml.safe_load(text.replace(old, new, 1))
    )


def test_the_jobset_has_a_pod_for_each_host_of_its_slice():
  (job,) = jobset()["spec"]["replicatedJobs"]
  pods = job["template"]["spec"]
  pod = pods["template"]["spec"]
  shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
  place = chips.parse(f"v5p:{shape}")
  assert pods["parallelism"] == pods["completions"] == place.hosts
  limits = pod["containers"][0]["resources"]["limits"]
  assert limits["google.com/tpu"] * place.hosts == place.size


def test_xpk_accepts_its_lines():
  parser_lib = pytest.importorskip("xpk.parser.core")
  parser = argparse.ArgumentParser(prog="xpk")
  parser_lib.set_parser(parser)
  lines = lines_of("xpk")
  assert len(lines) == 2
  for line in lines:
    words = [FILLED[word] if word in FILLED else word for word in line[1:]]
    found = parser.parse_args(words)
    assert "scripts/" in found.command
    with pytest.raises(SystemExit):
      parser.parse_args([*words, "--tpu-typo=v5p-16"])


def test_what_was_not_run_is_marked():
  parts = re.split(r"^## ", PAGE, flags=re.M)
  launches = [part for part in parts if "--distributed auto" in part]
  assert len(launches) == 4
  for part in launches:
    assert part.rstrip().endswith("Not run on hardware.")
