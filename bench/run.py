"""Compares this project with the paper's own code, alternating, on one core.

Run it alone on the machine; the default takes about 25 minutes:

  python bench/run.py --reference_python=.venv-parity/bin/python

In every pair the reference runs as it is, then this project, then the
reference with MKL's vendor check lifted: on AMD, MKL would else leave half of
the processor's arithmetic unused. Float32, one thread, a fresh process each.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from absl import app, flags

_PYTHON = flags.DEFINE_string(
  "reference_python",
  ".venv-parity/bin/python",
  "Python with requirements-parity.txt.",
)
_GGUF = flags.DEFINE_string("gguf", "", "GGUF file; default: SmolLM2's.")
_N = flags.DEFINE_integer("n", 2048, "Ids of the document.")
_SHORT_LEN = flags.DEFINE_integer("short_len", 512, "K.")
_STRIDE = flags.DEFINE_integer("stride", 128, "d.")
_PAIRS = flags.DEFINE_integer("pairs", 5, "Pairs; 0 leaves this size out.")
_N_LONG = flags.DEFINE_integer("n_long", 8000, "Ids of the long document.")
_SHORT_LEN_LONG = flags.DEFINE_integer("short_len_long", 1024, "Its K.")
_STRIDE_LONG = flags.DEFINE_integer("stride_long", 256, "Its d.")
_PAIRS_LONG = flags.DEFINE_integer(
  "pairs_long", 1, "Its pairs, of about 7 minutes each; 0 leaves it out."
)
_TRAIN_PAIRS = flags.DEFINE_integer(
  "train_pairs", 1, "Pairs of training steps at --n; 0 leaves them out."
)
_CORE = flags.DEFINE_integer("core", -1, "Core to run on; -1: the last.")

_HERE = pathlib.Path(__file__).parent
_STOCK, _OURS, _UNLOCKED = "reference", "ours", "reference, MKL unlocked"
_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
_LOSSES = {"none": "CE", "live": "LongCE", "stored": "stored weights"}
_VALUES = {
  "load_s": "loading, CPU s",
  "compile_s": "compilation, CPU s",
  "pass_s": "LongPPL, CPU s",
  "wall_s": "LongPPL, wall s",
  "plain_s": "plain PPL, CPU s",
  "peak_rss_mib": "peak memory, MiB",
}

Results = dict[str, list[dict[str, Any]]]


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


def run_script(
  python: str, script: str, arguments: list[str], env: dict[str, str]
) -> str:
  """Standard output of a script beside this one, on one core.

  Raises:
    RuntimeError: it failed; ends with what it printed last.
  """
  command = [python, str(_HERE / script), *arguments]
  if shutil.which("taskset"):
    core = _CORE.value if _CORE.value >= 0 else max(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), *command]
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  if done.returncode:
    raise RuntimeError(
      f"{script} failed ({done.returncode}):\n{done.stderr[-2000:]}"
    )
  return done.stdout


def measure(
  python: str,
  script: str,
  folder: pathlib.Path,
  size: Size,
  *more: str,
  **env: str,
) -> dict[str, Any]:
  """Runs one measurement, with more arguments, and reads its last line."""
  arguments = [
    f"--model={folder / 'model'}",
    f"--document={folder / f'document.{size.n}.txt'}",
    f"--short_len={size.short_len}",
    f"--stride={size.stride}",
    *more,
  ]
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


def run_pairs(folder: pathlib.Path, size: Size, shim: str) -> Results:
  """Runs the pairs of one size, printing each measurement as it ends."""
  results = collections.defaultdict(list)

  def run(kind, python, script, **env):
    result = measure(python, script, folder, size, **env)
    results[kind].append(result)
    print(
      f"  pair {pair}  {kind:<{len(_UNLOCKED)}}  {result['pass_s']:8.2f} s  "
      f"{result['peak_rss_mib']:6.0f} MiB  LongPPL {result['longppl']}  "
      f"{result['n_keys']} keys",
      flush=True,
    )
    return result

  for pair in range(1, size.pairs + 1):
    stock = run(_STOCK, _PYTHON.value, "reference.py")
    run(_OURS, sys.executable, "ours.py")
    if not shim or not stock["mkl"]:
      print(f"  pair {pair}  {_UNLOCKED}: skipped, there is no gcc or no MKL")
    else:
      run(_UNLOCKED, _PYTHON.value, "reference.py", LD_PRELOAD=shim)
  return results


def run_training(folder: pathlib.Path, size: Size, shim: str) -> Results:
  """Runs pairs of training steps; kinds are e.g. "ours, LongCE"."""
  results = collections.defaultdict(list)
  for pair in range(1, size.pairs + 1):
    for weights, loss in _LOSSES.items():
      for side in (_STOCK, _OURS, _UNLOCKED):
        if weights == "stored" and side != _OURS:
          continue
        if side == _UNLOCKED and not shim:
          continue
        python, script, env = _PYTHON.value, "train_reference.py", {}
        if side == _OURS:
          python, script = sys.executable, "train_ours.py"
        elif side == _UNLOCKED:
          env["LD_PRELOAD"] = shim
        result = measure(
          python, script, folder, size, f"--weights={weights}", **env
        )
        results[f"{side}, {loss}"].append(result)
        print(
          f"  pair {pair}  {loss:<14}  {side:<{len(_UNLOCKED)}}  "
          f"{result['pass_s']:8.2f} s  {result['peak_rss_mib']:6.0f} MiB  "
          f"loss {result['loss']:.6f}  norm {result['grad_norm']:.6f}",
          flush=True,
        )
  return results


def print_training_ratios(results: Results) -> None:
  """Prints the ratios of the training steps' medians against their aims."""

  def seconds(side, loss, value="pass_s"):
    return median(results, f"{side}, {loss}", value)

  for loss in ("CE", "LongCE"):
    for side in (_STOCK, _UNLOCKED):
      if f"{side}, {loss}" in results:
        print_ratio(
          f"{loss}: {side} / ours, CPU",
          seconds(side, loss) / seconds(_OURS, loss),
          at_least=1.0,
        )
    print_ratio(
      f"{loss}: our peak memory / the reference's",
      seconds(_OURS, loss, "peak_rss_mib")
      / seconds(_STOCK, loss, "peak_rss_mib"),
    )
  ce = seconds(_OURS, "CE")
  print_ratio(
    "our LongCE / our CE, CPU", seconds(_OURS, "LongCE") / ce, at_most=1.5
  )
  print_ratio(
    "our stored weights / our CE, CPU",
    seconds(_OURS, "stored weights") / ce,
    at_most=1.05,
  )


def median(results: Results, kind: str, value: str) -> float:
  """Median over the pairs."""
  return statistics.median(result[value] for result in results[kind])


def print_values(results: Results) -> None:
  """Prints every value, and the medians."""
  for value, title in _VALUES.items():
    for kind, runs in results.items():
      if value in runs[0]:
        values = "  ".join(f"{run[value]:.2f}" for run in runs)
        print(
          f"{title:<18}  {kind:<{len(_UNLOCKED)}}  "
          f"median {median(results, kind, value):.2f}  of  {values}"
        )


def print_ratio(
  title: str, ratio: float, *, at_least: float = 0.0, at_most: float = 0.0
) -> None:
  """Prints a ratio and, where it has an aim, whether that is met."""
  verdict = ""
  if at_least:
    met = ratio >= at_least
    verdict = f"aim: at least {at_least:g}: {'met' if met else 'MISSED'}"
  if at_most:
    met = ratio <= at_most
    verdict = f"aim: at most {at_most:g}: {'met' if met else 'MISSED'}"
  print(f"{title:<44}  {ratio:6.2f}  {verdict}")


def print_ratios(results: Results, size: Size) -> None:
  """Prints the ratios of the medians against their aims."""
  ours = {value: median(results, _OURS, value) for value in _VALUES}
  for kind, aim in ((_STOCK, 3.0), (_UNLOCKED, 1.4)):
    if kind in results:
      theirs = median(results, kind, "pass_s")
      print_ratio(f"{kind} / ours, CPU", theirs / ours["pass_s"], at_least=aim)
      print_ratio(
        "  with our compilation",
        theirs / (ours["pass_s"] + ours["compile_s"]),
      )
  print_ratio(
    "our peak memory / the reference's",
    ours["peak_rss_mib"] / median(results, _STOCK, "peak_rss_mib"),
    # At shorter documents it is mostly the weights.
    at_most=0.5 if size.n >= 8000 else 0.0,
  )
  print_ratio(
    "our LongPPL / our plain PPL, CPU",
    ours["pass_s"] / ours["plain_s"],
    at_most=3.5,
  )


def print_agreement(results: Results) -> None:
  """Prints what both sides found."""
  ours, theirs = (results[kind][0] for kind in (_OURS, _STOCK))
  print(
    f"key tokens: {ours['n_keys']} ours, {theirs['n_keys']} reference; "
    f"PPL differs by {ours['ppl'] / theirs['ppl'] - 1:+.1e}",
    end="",
  )
  if ours["longppl"] and theirs["longppl"]:
    print(f", LongPPL by {ours['longppl'] / theirs['longppl'] - 1:+.1e}")
  else:
    print(f"; LongPPL {ours['longppl']} ours, {theirs['longppl']} reference")


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
  pinned = "one core" if shutil.which("taskset") else "NOT pinned: no taskset"
  print(describe_processor())
  load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
  print(f"{pinned}, load before the start {load} (an idle machine: near 0)")
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    arguments = [f"--out={folder}", f"--gguf={_GGUF.value}"]
    arguments += [f"--n={n}" for n in {size.n for size in (*sizes, training)}]
    run_script(sys.executable, "prepare.py", arguments, environment())
    shim = build_shim(folder)
    for size in sizes:
      print(f"\nn={size.n}, K={size.short_len}, d={size.stride}", flush=True)
      results = run_pairs(folder, size, shim)
      for kind in (_STOCK, _OURS):
        print(f"{kind}: {results[kind][0]['versions']}")
      print_values(results)
      print_ratios(results, size)
      print_agreement(results)
    if training.pairs:
      print(
        f"\ntraining step, n={training.n}, K={training.short_len}, "
        f"d={training.stride}",
        flush=True,
      )
      print_training_ratios(run_training(folder, training, shim))


if __name__ == "__main__":
  app.run(main)
