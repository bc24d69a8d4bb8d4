"""What long runs need: settings that agree, progress, processes.

Doors, for other rooms:
  files: files that appear whole, and locks
  foreign_files: what is wrong with a file that others wrote
  settings: whether two runs agree in what determines their numbers
  progress: usage, speed, time left, a heartbeat
  processes: several processes as one program; SIGTERM
"""

__all__ = ["files", "foreign_files", "settings", "progress", "processes"]
