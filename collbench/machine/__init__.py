"""The hardware of a node: data model, readers, merging of sources, peak rates and the doctor's checks."""
