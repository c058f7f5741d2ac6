-- collbench for Lmod; install.sh replaces the words between @. Lmod ignores the Tcl file next to it.
help([[collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI. See `collbench --help`.]])
whatis("Name: collbench")
whatis("Version: @VERSION@")
whatis("Description: measures collectives and point-to-point over NCCL, Gloo and MPI, and shows how fast they could be")
@MODULES@
-- a folder with this command only: the bin folder of the environment would put its python and pip before the user's
prepend_path("PATH", "@PREFIX@/bin")
