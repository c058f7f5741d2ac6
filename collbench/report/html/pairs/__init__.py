"""The matrix of pairs as a picture: classes, groups, marks, and the values behind it."""
