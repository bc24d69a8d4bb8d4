"""What a script runs on: CPU, GPU or TPU, as JAX finds it."""

from __future__ import annotations

import os

import jax

from longctx_jax.runtime import chips, machine, programs

# What a machine with the device has, and the extra that JAX needs for it.
_DEVICES = {
  "gpu": (("/dev/nvidiactl", "/dev/nvidia0"), "cuda"),
  "tpu": (("/dev/accel0", "/dev/vfio/0"), "tpu"),
}
# More of them than this meet at the memory.
_MOST_CPU_DEVICES = 8

# Whether `start` has set the number of CPU devices, and not the user.
_is_spread = False


def start(platform: str, *, cache: str, spread: bool = False) -> None:
  """Starts the devices.

  Args:
    platform: cpu, gpu or tpu; "" is what JAX finds.
    cache: folder of compiled programs, see `programs.keep`; "" is none.
    spread: make each core, of 8 at most, a device of its own, unless the user
      has set a number of CPU devices or has joined processes. For programs
      that ask `copies` how many of them to use.

  Raises:
    ValueError: there is no such platform here.
  """
  global _is_spread
  if platform:
    jax.config.update("jax_platforms", platform)
  if cache:
    programs.keep(cache)
  _is_spread = (
    spread and not _has_count() and not jax.distributed.is_initialized()
  )
  if _is_spread:
    count = min(machine.cpu_count(), _MOST_CPU_DEVICES)
    jax.config.update("jax_num_cpu_devices", count)
  try:
    jax.default_backend()
  except RuntimeError as error:
    raise ValueError(
      f"--platform {platform}: {str(error).splitlines()[0]}"
    ) from error


def _has_count() -> bool:
  """Whether the user has set the number of CPU devices."""
  flags = os.environ.get("XLA_FLAGS") or ""
  by_flag = "xla_force_host_platform_device_count" in flags
  # The variable JAX_NUM_CPU_DEVICES sets JAX's own option.
  return by_flag or jax.config.jax_num_cpu_devices >= 0


def copies(size: int) -> int:
  """CPU devices for copies of something, one on each.

  Where `start` has set their number, as many as fit into a quarter of the
  memory, one at least; a number that the user has set stands.

  Args:
    size: bytes of a copy.
  """
  count = jax.device_count()
  if not _is_spread:
    return count
  return max(1, min(count, machine.memory_bytes() // 4 // max(size, 1)))


def require_seen(platform: str) -> None:
  """Raises ValueError where the machine has a device that JAX does not see.

  Args:
    platform: what was asked for, which is then what is wanted; so is what
      JAX_PLATFORMS in the environment says.
  """
  asked = platform or jax.config.jax_platforms
  if asked or jax.default_backend() != "cpu":
    return
  for device, (paths, extra) in _DEVICES.items():
    if any(os.path.exists(path) for path in paths):
      raise ValueError(
        f"this machine has a {device}, but JAX sees only the CPU: install "
        f"the extra for it (pip install -e '.[{extra}]'), or go on with "
        "--platform cpu"
      )


def memory_bytes(device: jax.Device) -> int:
  """Memory of a device; of a CPU, that of the machine; 0 where not known."""
  if device.platform == "cpu":
    return machine.memory_bytes()
  try:
    stats = device.memory_stats() or {}
  except jax.errors.JaxRuntimeError:  # One of a topology, which is not there.
    stats = {}
  if "bytes_limit" in stats:
    return stats["bytes_limit"]
  return chips.memory_bytes(device.device_kind)


def describe() -> str:
  """What the program runs on, e.g. "jax 0.10.2 | cpu x2 | 23 GiB"."""
  device = jax.devices()[0]
  if device.platform == "cpu":
    count, kind = machine.cpu_count(), "cpu"
  else:
    count, kind = jax.device_count(), device.device_kind
  size = memory_bytes(device)
  memory = f" | {size / 2**30:.0f} GiB" if size else ""
  return f"jax {jax.__version__} | {kind} x{count}{memory}"
