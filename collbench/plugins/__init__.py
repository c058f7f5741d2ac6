"""The plug-ins that come with collbench: each folder is a capability outside the core, and may be deleted."""
