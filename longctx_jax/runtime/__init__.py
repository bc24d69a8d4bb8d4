"""What long runs need: files, settings that agree, progress, processes.

Doors, for other rooms:
  files: files that appear whole, and locks
  foreign_files: what is wrong with a file that others wrote
  settings: whether two runs agree in what determines their numbers
  progress: usage, speed, time left, a heartbeat
  workers: reading ahead and writing, beside the main thread
  arrivals: results of the devices, and how long these worked
  shards: which part of the work is whose
  processes: several processes as one program; SIGTERM
  channel: what these processes tell each other
  watch: all of them end where one does
  device: what a script runs on
  chips: what devices can do, and the slices that there are of them
  programs: compiled programs, kept from one run to the next
  stamp: what made a file
  machine: what Linux, macOS and Windows do not share
  urls: places with a scheme, as gs://bucket/file
  failures: what went wrong outside of the program, as a sentence
"""

__all__ = [
  "files", "foreign_files", "settings", "progress", "shards", "processes",
  "workers", "arrivals", "channel", "watch", "device", "chips", "programs",
  "stamp", "machine", "urls", "failures",
]  # fmt: skip
