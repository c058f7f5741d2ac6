"""The backend oneccl: Intel's collective library, on host memory."""
