"""The demonstration: the main job on real data, killed on the way, checked row by row at the end."""
