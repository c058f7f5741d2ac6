"""What is wrong with the machines before anything is measured: findings with their evidence and remedy."""
