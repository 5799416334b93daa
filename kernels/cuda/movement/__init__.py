"""Elements that move as they are: copies, transposes, gathers, scatters."""
