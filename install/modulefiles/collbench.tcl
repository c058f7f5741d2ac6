#%Module1.0
# collbench for Environment Modules; install.sh fills in the words between @. Lmod takes the .lua beside it.
proc ModulesHelp { } {
    puts stderr "collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI. `collbench --help` tells more."
}
module-whatis "collbench @VERSION@: measures collectives and point-to-point over NCCL, Gloo and MPI, and says how fast they could be"
conflict collbench
@MODULES@
# a folder with this one command: the environment's own bin would put its python and pip in front of the user's
prepend-path PATH "@PREFIX@/bin"
