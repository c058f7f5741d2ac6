#%Module1.0
# collbench for Environment Modules; install.sh replaces the words between @. Lmod uses the .lua file next to it.
proc ModulesHelp { } {
    puts stderr "collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI. See `collbench --help`."
}
module-whatis "collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI, and shows how fast they could be"
conflict collbench
@MODULES@
# a folder with this command only: the bin folder of the environment would put its python and pip before the user's
prepend-path PATH "@PREFIX@/bin"
