"""What a result says of the run that made it."""

import datetime
import shlex
import sys

import jax

import longctx_jax
from longctx_jax.runtime import stamp


def test_the_command_can_be_typed_again(monkeypatch):
  words = ["--model", "a b", "--data=x.txt"]
  monkeypatch.setattr(sys, "argv", ["/a/checkout/scripts/eval.py", *words])
  before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
  made = stamp.stamp()
  assert shlex.split(made["command"]) == ["python", "scripts/eval.py", *words]
  assert datetime.datetime.fromisoformat(made["date"]) >= before
  assert made["versions"]["jax"] == jax.__version__
  assert made["versions"]["longctx_jax"] == longctx_jax.__version__
