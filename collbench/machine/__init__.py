"""What the machine is: for now its network interfaces."""
