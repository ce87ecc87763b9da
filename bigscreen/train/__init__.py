"""The main job: from a data set to a certified model."""
