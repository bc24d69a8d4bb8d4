"""What long runs need: settings that agree, progress, processes.

Doors, for other rooms:
  files: files that appear whole, and locks
  settings: whether two runs agree in what determines their numbers
  progress: usage, speed, time left, a heartbeat
  shards: which part of the work is whose
  processes: several processes as one program; SIGTERM
"""

__all__ = ["files", "settings", "progress", "shards", "processes"]
