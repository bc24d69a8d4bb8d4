"""What long runs need: settings that agree, progress, processes."""
