// The fake libnvidia-ml.so.1, whose presence shows a driver. tools/pynvml.py, the double of its Python binding, calls nothing in it.
