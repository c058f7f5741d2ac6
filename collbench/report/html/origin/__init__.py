"""Where numbers come from: raw files, other tools' output, how each is made."""
