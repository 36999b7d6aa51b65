"""Compiled graphs on disk: a process that meets a graph again neither lowers nor schedules it."""
