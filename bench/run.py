"""Compares this project with the paper's own code, alternating, on one core.

Run it alone on the machine; the default takes about half an hour:

  python bench/run.py --reference_python=.venv-parity/bin/python

In every pair the reference runs as it is, then this project, then the
reference with MKL's vendor check lifted: on AMD, MKL would else leave half of
the processor's arithmetic unused. Float32, one thread, a fresh process each;
where the processor has AMX, a pair in bfloat16 as well. Before them stands how
far each part of this project's work is from the machine's floor (`parts.py`),
and what devices on all cores gain for eight documents and for one
(`documents.py`).

Against an older version of this project, and nothing else:

  python bench/run.py --against=REVISION --pairs=0 --pairs_long=0
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import against
import tables
from absl import app, flags

from longctx_jax.runtime import machine

_PYTHON = flags.DEFINE_string(
  "reference_python",
  ".venv-parity/bin/python",
  "Python with requirements-parity.txt.",
)
_GGUF = flags.DEFINE_string("gguf", "", "GGUF file; default: SmolLM2's.")
_N = flags.DEFINE_integer("n", 2048, "Ids of the document.")
_SHORT_LEN = flags.DEFINE_integer("short_len", 512, "K.")
_STRIDE = flags.DEFINE_integer("stride", 128, "d.")
_PAIRS = flags.DEFINE_integer("pairs", 3, "Pairs; 0 leaves this size out.")
_N_LONG = flags.DEFINE_integer("n_long", 8000, "Ids of the long document.")
_SHORT_LEN_LONG = flags.DEFINE_integer("short_len_long", 1024, "Its K.")
_STRIDE_LONG = flags.DEFINE_integer("stride_long", 256, "Its d.")
_PAIRS_LONG = flags.DEFINE_integer(
  "pairs_long", 1, "Its pairs, of about 7 minutes each; 0 leaves it out."
)
_TRAIN_PAIRS = flags.DEFINE_integer(
  "train_pairs", 1, "Pairs of training steps at --n; 0 leaves them out."
)
_ROUNDS = flags.DEFINE_integer(
  "rounds",
  5,
  "Rounds of the parts, the documents, and of --against; 0 leaves them out.",
)
_AGAINST = flags.DEFINE_string(
  "against", "", "Git revision of this project to compare with."
)
_CORE = flags.DEFINE_integer("core", -1, "Core to run on; -1: the last.")

_HERE = pathlib.Path(__file__).parent
_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
_LOSSES = {"none": "CE", "live": "LongCE", "stored": "stored weights"}


@dataclasses.dataclass(frozen=True)
class Size:
  """A document and its windows, and how many pairs to run."""

  n: int
  short_len: int
  stride: int
  pairs: int


def environment(**changes: str) -> dict[str, str]:
  """The environment of a measured process: one thread, no network."""
  kept = {
    name: value
    for name, value in os.environ.items()
    # Kernels chosen by hand, and devices asked for, would skew the numbers.
    if not name.startswith("OPENBLAS_") and name != "XLA_FLAGS"
  }
  return kept | {
    "PYTHONPATH": str(_HERE.parent),
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    **changes,
  }


def pinned(command: list[str]) -> list[str]:
  """The command on one core, where there is `taskset`."""
  if not shutil.which("taskset"):
    return command
  core = _CORE.value if _CORE.value >= 0 else max(os.sched_getaffinity(0))
  return ["taskset", "-c", str(core), *command]


def run_script(
  python: str, script: str, arguments: list[str], env: dict[str, str]
) -> str:
  """Standard output of a script beside this one, on one core.

  Raises:
    RuntimeError: it failed; ends with what it printed last.
  """
  command = pinned([python, str(_HERE / script), *arguments])
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  if done.returncode:
    raise RuntimeError(
      f"{script} failed ({done.returncode}):\n{done.stderr[-2000:]}"
    )
  return done.stdout


def inputs(folder: pathlib.Path, size: Size) -> list[str]:
  """The arguments that every measured process has."""
  return [
    f"--model={folder / 'model'}",
    f"--document={folder / f'document.{size.n}.txt'}",
    f"--short_len={size.short_len}",
    f"--stride={size.stride}",
  ]


def measure(
  python: str,
  script: str,
  folder: pathlib.Path,
  size: Size,
  *more: str,
  **env: str,
) -> dict[str, Any]:
  """Runs one measurement, with more arguments, and reads its last line."""
  arguments = [*inputs(folder, size), *more]
  output = run_script(python, script, arguments, environment(**env))
  return json.loads(output.splitlines()[-1])


def build_shim(folder: pathlib.Path) -> str:
  """Compiles the library that lifts MKL's vendor check; "" without gcc."""
  if not shutil.which("gcc"):
    return ""
  source, shim = folder / "shim.c", folder / "shim.so"
  source.write_text(_SHIM)
  subprocess.run(
    ["gcc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True
  )
  return str(shim)


def run_pairs(folder: pathlib.Path, size: Size, shim: str) -> tables.Results:
  """Runs the pairs of one size, printing each measurement as it ends."""
  results = collections.defaultdict(list)

  def run(kind, python, script, *more, **env):
    result = measure(python, script, folder, size, *more, **env)
    results[kind].append(result)
    print(
      f"  pair {pair}  {kind:<{len(tables.UNLOCKED)}}  "
      f"{result['pass_s']:8.2f} s  {result['peak_rss_mib']:6.0f} MiB  "
      f"LongPPL {result['longppl']}  {result['n_keys']} keys",
      flush=True,
    )
    return result

  for pair in range(1, size.pairs + 1):
    stock = run(tables.STOCK, _PYTHON.value, "reference.py")
    run(tables.OURS, sys.executable, "ours.py")
    if not shim or not stock["mkl"]:
      print(
        f"  pair {pair}  {tables.UNLOCKED}: skipped, there is no gcc or no MKL"
      )
    else:
      run(tables.UNLOCKED, _PYTHON.value, "reference.py", LD_PRELOAD=shim)
    if has_amx():
      half = "--dtype=bfloat16"
      run(tables.STOCK + tables.BFLOAT16, _PYTHON.value, "reference.py", half)
      run(tables.OURS + tables.BFLOAT16, sys.executable, "ours.py", half)
  return results


def run_training(folder: pathlib.Path, size: Size, shim: str) -> tables.Results:
  """Runs pairs of training steps; kinds are e.g. "ours, LongCE"."""
  results = collections.defaultdict(list)
  for pair in range(1, size.pairs + 1):
    for weights, loss in _LOSSES.items():
      for side in (tables.STOCK, tables.OURS, tables.UNLOCKED):
        if weights == "stored" and side != tables.OURS:
          continue
        if side == tables.UNLOCKED and not shim:
          continue
        python, script, env = _PYTHON.value, "train_reference.py", {}
        if side == tables.OURS:
          python, script = sys.executable, "train_ours.py"
        elif side == tables.UNLOCKED:
          env["LD_PRELOAD"] = shim
        result = measure(
          python, script, folder, size, f"--weights={weights}", **env
        )
        results[f"{side}, {loss}"].append(result)
        print(
          f"  pair {pair}  {loss:<14}  {side:<{len(tables.UNLOCKED)}}  "
          f"{result['pass_s']:8.2f} s  {result['peak_rss_mib']:6.0f} MiB  "
          f"loss {result['loss']:.6f}  norm {result['grad_norm']:.6f}",
          flush=True,
        )
  return results


def has_amx() -> bool:
  """Whether the processor multiplies bfloat16 in tiles."""
  path = pathlib.Path("/proc/cpuinfo")
  return path.exists() and "amx_bf16" in path.read_text()


def print_parts(folder: pathlib.Path, size: Size) -> None:
  """Prints the machine's rates, and what each part has of the floor."""
  for dtype in ("float32", "bfloat16")[: 1 + has_amx()]:
    print(f"\nparts in {dtype}", flush=True)
    arguments = [
      f"--model={folder / 'model'}",
      f"--dtype={dtype}",
      f"--n={size.n}",
      f"--short_len={size.short_len}",
      f"--stride={size.stride}",
      f"--rounds={_ROUNDS.value}",
    ]
    env = environment()
    print(run_script(sys.executable, "parts.py", arguments, env), end="")


def run_against(folder: pathlib.Path, size: Size, training: Size) -> None:
  """Compares with an older version: LongPPL by turns, then training steps."""
  older = folder / "older"
  commit = against.extract(_HERE.parent, _AGAINST.value, older)
  trees = {"older": older, "present": _HERE.parent}
  print(f"\nagainst {_AGAINST.value} ({commit[:12]}), present / older")
  with contextlib.ExitStack() as stack:
    workers = {
      name: stack.enter_context(
        against.worker(
          pinned(
            [
              sys.executable,
              str(_HERE / "worker.py"),
              f"--n={size.n}",
              *inputs(folder, size),
            ]
          ),
          environment(PYTHONPATH=str(tree)),
        )
      )
      for name, tree in trees.items()
    }
    ready, results = against.alternate(workers, _ROUNDS.value)
  for name, tree in trees.items():
    if not pathlib.Path(ready[name]["tree"]).is_relative_to(tree):
      raise RuntimeError(f"the {name} tree was not measured: {ready[name]}")
  for value in ("LongPPL", "LongPPL, wall", "long pass", "windows"):
    tables.print_against(value, results, value)
  steps: tables.Results = collections.defaultdict(list)
  for _ in range(training.pairs):
    for weights, loss in _LOSSES.items():
      for name, tree in trees.items():
        result = measure(
          sys.executable,
          str(tree / "bench" / "train_ours.py"),
          folder,
          training,
          f"--weights={weights}",
          PYTHONPATH=str(tree),
        )
        steps[f"{name}, {loss}"].append(result)
  for loss in _LOSSES.values() if training.pairs else ():
    pair = {name: steps[f"{name}, {loss}"] for name in trees}
    tables.print_against(f"{loss} step", pair, "pass_s")


def run_documents(folder: pathlib.Path, size: Size) -> None:
  """Compares devices on all cores with one core, and with one device."""
  command = [sys.executable, str(_HERE / "documents.py"), *inputs(folder, size)]
  one_device = environment(JAX_NUM_CPU_DEVICES="1")
  starts = {
    "all cores": (command, environment()),
    "one core": (pinned(command), environment()),
    "one device": (command, one_device),
  }
  with contextlib.ExitStack() as stack:
    workers = {
      name: stack.enter_context(against.worker(*start))
      for name, start in starts.items()
    }
    ready, results = against.alternate(workers, _ROUNDS.value)
  print(f"\ndocuments on {ready['all cores']['devices']} devices, wall seconds")
  tables.print_documents(ready, results)


def describe_processor() -> str:
  """Name, family and model: MKL's lead and AVX-512's worth depend on them."""
  path = pathlib.Path("/proc/cpuinfo")
  if not path.exists():
    return platform.processor()
  facts = dict(
    re.split(r"\s*:\s*", line, maxsplit=1)
    for line in path.read_text().split("\n\n")[0].splitlines()
  )
  names = ("model name", "cpu family", "model")
  return ", ".join(f"{name} {facts[name]}" for name in names if name in facts)


def main(argv):
  """Prepares, measures each size, prints."""
  del argv
  sizes = [
    Size(_N.value, _SHORT_LEN.value, _STRIDE.value, _PAIRS.value),
    Size(
      _N_LONG.value,
      _SHORT_LEN_LONG.value,
      _STRIDE_LONG.value,
      _PAIRS_LONG.value,
    ),
  ]
  training = dataclasses.replace(sizes[0], pairs=_TRAIN_PAIRS.value)
  sizes = [size for size in sizes if size.pairs]
  where = "one core" if shutil.which("taskset") else "NOT pinned: no taskset"
  print(describe_processor())
  load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
  print(f"{where}, load before the start {load} (an idle machine: near 0)")
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    arguments = [f"--out={folder}", f"--gguf={_GGUF.value}"]
    arguments += [f"--n={n}" for n in {size.n for size in (*sizes, training)}]
    run_script(sys.executable, "prepare.py", arguments, environment())
    if _ROUNDS.value:
      print_parts(folder, training)
    if _ROUNDS.value and machine.cpu_count() > 1:
      run_documents(folder, training)
    if _AGAINST.value and _ROUNDS.value:
      run_against(folder, training, training)
    shim = build_shim(folder)
    for size in sizes:
      print(f"\nn={size.n}, K={size.short_len}, d={size.stride}", flush=True)
      results = run_pairs(folder, size, shim)
      for kind in (tables.STOCK, tables.OURS):
        print(f"{kind}: {results[kind][0]['versions']}")
      tables.print_values(results)
      tables.print_ratios(results, size.n)
      tables.print_agreement(results)
    if training.pairs:
      print(
        f"\ntraining step, n={training.n}, K={training.short_len}, "
        f"d={training.stride}",
        flush=True,
      )
      tables.print_training_ratios(run_training(folder, training, shim))


if __name__ == "__main__":
  app.run(main)
