-- collbench for Lmod; install.sh fills in the words between @ and puts it beside the Tcl one, which Lmod then leaves alone.
help([[collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI. `collbench --help` tells more.]])
whatis("Name: collbench")
whatis("Version: @VERSION@")
whatis("Description: measures collectives and point-to-point over NCCL, Gloo and MPI, and says how fast they could be")
@MODULES@
-- a folder with this one command: the environment's own bin would put its python and pip in front of the user's
prepend_path("PATH", "@PREFIX@/bin")
