"""Each stack's own minimal loop of all-reduces, one file each, which its environment's Python runs as a program of two ranks."""
