"""The run folder, reading and writing: the only room that knows the names of the files in it."""
