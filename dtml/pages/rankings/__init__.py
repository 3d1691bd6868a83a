"""Pages of rankings: a walk through history, its tear sheet, and published figures beside ours."""
