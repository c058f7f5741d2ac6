"""The plug-ins that come with collbench: each folder is a capability beside the core, and may be deleted."""
